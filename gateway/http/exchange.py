"""What the request path sees of HTTP: a request that has come in, and a reply to it.

Written to synchronously, so that a replica's bytes go out in the same callback of the event loop that brought them in.
A client that leaves cancels the task which serves it.
"""

from collections.abc import Mapping
from typing import Protocol


class Flow(Protocol):
    """Where a reply's bytes come from."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Exchange(Protocol):
    """One request and its reply."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """Without the query."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Ask by names in lower case."""

    @property
    def remote(self) -> str | None:
        """The client's address."""

    async def body(self) -> bytes:
        """As it was sent, still compressed. Raises HttpError where it is too long, too slow or malformed."""

    status: int
    """Of the reply; 0: not begun."""

    more_headers: Mapping[str, str]
    """Of any reply, beside its own."""

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The whole reply at once."""

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """A reply of unknown length. Its head goes out with the first bytes."""

    def write(self, data: bytes) -> None:
        """Never blocks: what the client doesn't take yet stops the flow, and is lost if the client has gone."""

    def end(self) -> None: ...

    def draw_from(self, flow: Flow | None) -> None:
        """Who has to pause while the client doesn't keep up."""
