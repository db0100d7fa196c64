"""The one exception that commands turn into a line and exit status 1."""


class CompareError(Exception):
    """The comparison can't go on; the message says why, and what to do where there is something."""
