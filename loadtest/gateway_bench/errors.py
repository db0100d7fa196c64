"""Why the bench of the data plane came to no end."""


class GatewayBenchError(Exception):
    """The text is for people."""
