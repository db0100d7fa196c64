"""Why a soak came to no end."""


class SoakError(Exception):
    """The text is for people."""
