"""What must hold at every moment: the index gives credit for nothing but what a digest really was, and for no epoch
once a newer one was seen. Where two processes have one id, neither's epoch is over: credit is for the one or the other,
never for a mix of both."""

from gateway.index.prefix_index import PrefixIndex
from replica.digest import Digest
from replica.protocol.records import Delta


class Violation(AssertionError):
    """The index has said something that isn't so."""


class History:
    """All digests that ever were."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str, int], frozenset[int]] = {}
        self.epochs: dict[str, list[str]] = {}
        """Of each replica, in their order."""
        self.twinned: set[str] = set()
        """Ids that two processes had at a time: of their epochs none is older."""

    def begin(self, replica: str, epoch: str) -> None:
        self.epochs.setdefault(replica, []).append(epoch)
        self.held[replica, epoch, 0] = frozenset()

    def number(self, replica: str) -> int:
        """Of its next epoch."""
        return len(self.epochs.get(replica, ())) + 1

    def age(self, replica: str, epoch: str) -> int:
        """Later epochs have higher numbers."""
        return self.epochs[replica].index(epoch)


class RecordedDigest(Digest):
    history: History

    @classmethod
    def of(cls, replica: str, epoch: str, history: History) -> "RecordedDigest":
        digest = cls(replica, epoch)
        digest.history = history
        history.begin(replica, epoch)
        return digest

    def next_delta(self) -> Delta:
        delta = super().next_delta()
        self.history.held[self.replica, self.epoch, self.seq] = frozenset(self.held)
        return delta

    def restart(self) -> None:
        super().restart()
        self.history.begin(self.replica, self.epoch)


class Checker:
    """Of one gateway."""

    def __init__(self, gateway: str, history: History, index: PrefixIndex) -> None:
        self._gateway = gateway
        self._history = history
        self._index = index
        self._newest: dict[str, int] = {}

    def see(self, replica: str, epoch: str) -> None:
        """The gateway has been given a record that names it."""
        if replica in self._history.epochs:
            age = self._history.age(replica, epoch)
            self._newest[replica] = max(age, self._newest.get(replica, 0))

    def credited(self, replica: str) -> frozenset[int]:
        """What a replica must have by its position. Raises Violation."""
        position = self._index.position(replica)
        if position is None:
            return frozenset()
        epoch, seq = position
        newest = 0 if replica in self._history.twinned else self._newest.get(replica, 0)
        if self._history.age(replica, epoch) < newest:
            raise Violation(f"{self._gateway} credits {replica} for epoch {epoch}, which it knows to be over")
        held = self._history.held.get((replica, epoch, seq))
        if held is None:
            raise Violation(f"{self._gateway} has {replica} at {epoch}#{seq}, which never was")
        return held

    def check_all(self) -> None:
        for replica in self._index.replicas():
            held, credited = self._index.hashes_of(replica), self.credited(replica)
            if held != credited:
                more, less = len(held - credited), len(credited - held)
                raise Violation(
                    f"{self._gateway} has {replica} at {self._index.position(replica)} with {more} blocks too many and "
                    f"{less} too few"
                )

    def query(self, prompt: list[int]) -> None:
        matches = self._index.match(prompt)
        for replica in self._index.replicas():
            held = self.credited(replica)
            expected = next((depth for depth, block in enumerate(prompt) if block not in held), len(prompt))
            found = matches[replica].held if replica in matches else 0
            if found != expected:
                raise Violation(f"{self._gateway} finds {found} blocks at {replica}, which has {expected}")
