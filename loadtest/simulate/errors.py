"""The one exception that `ryokan simulate` turns into a line and exit status 1."""


class SimulateError(Exception):
    """The message names the flag that is wrong."""
