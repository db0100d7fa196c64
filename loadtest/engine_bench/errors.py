"""What can go wrong in a bench."""


class BenchError(Exception):
    """The bench can't be run; the message names what is wrong."""


class ContenderFailed(Exception):
    """A contender has died or doesn't answer; the others go on without it."""
