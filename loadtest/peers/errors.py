"""The one exception of this bench."""


class PeersError(Exception):
    """The bench can't go on; the message says why."""
