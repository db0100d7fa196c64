"""What can be wrong with HTTP itself, before anybody looks at what a request asks for."""


class HttpError(Exception):
    """The message is for the client; `status` and `code` are what it sees besides."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def malformed(message: str) -> HttpError:
    return HttpError(400, "malformed_request", message)
