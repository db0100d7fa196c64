"""The one exception of traces, which commands turn into a line and exit status 1."""

from loadtest.errors import CompareError


class TraceError(CompareError):
    """The message names the file and line, or the flag, that is wrong."""
