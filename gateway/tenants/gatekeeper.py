"""Who is asking, and whether they may now. One look-up by the key's hash, on a set that is replaced as a whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gateway.dispatch import Call
from gateway.errors import GatewayError, UnknownKey
from gateway.recording.answer import AnswerCount
from gateway.tenants.caller import ANONYMOUS, Caller
from gateway.tenants.key_file import KeySet
from gateway.tenants.meter import Meter, Usage, admit_all

_NOTHING = nullcontext()


class Gatekeeper:
    def __init__(self, keys: KeySet | None, clock: Callable[[], float], shared: bool = False) -> None:
        """`keys`: None where everybody may; `shared`: other workers count as well."""
        self.keys = keys
        self.meter = Meter(shared)
        self._clock = clock

    def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """By `Authorization: Bearer KEY`; `headers` are asked by names in lower case. Raises UnknownKey."""
        if self.keys is None:
            return ANONYMOUS
        given = headers.get("authorization", "")
        scheme, _, key = given.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnknownKey("an API key is needed: Authorization: Bearer KEY")
        caller = self.keys.find(key.strip())
        if caller is None:
            raise UnknownKey("the API key is unknown")
        return caller

    def admitted(self, caller: Caller) -> Usage | None:
        """A request, from its headers to its end, when what this returns is to be closed; None: it has no limits.
        Raises ConcurrencyLimit, RequestRateLimit."""
        return self.meter.begin(caller, self._clock()) if caller.limits else None

    @contextmanager
    def several(self, caller: Caller, usage: Usage | None, count: int) -> Iterator[Sequence[Usage | None]]:
        """As many requests, all or none, in place of one; None: as of `admitted`. Raises ConcurrencyLimit,
        RequestRateLimit."""
        if usage is None:
            yield [None] * count
            return
        now = self._clock()
        usage.withdraw(now)
        usages = self.meter.begin_several(caller, count, now)
        try:
            yield usages
        finally:
            for each in usages:
                each.close()

    def admit_all(self, usages: Iterable[Usage | None], prompt_tokens: Sequence[int]) -> None:
        """Pays for all prompts, or for none. Raises TokenRateLimit."""
        if limited := [usage for usage in usages if usage is not None]:
            admit_all(limited, prompt_tokens, self._clock())

    def refund(self, usages: Iterable[Usage | None]) -> None:
        """The client has got nothing."""
        for usage in usages:
            if usage is not None:
                usage.settle(0, self._clock())

    def metered(self, usage: Usage | None, call: Call) -> AbstractContextManager[None]:
        """Pays for the prompt at once, and for the answer as `call.trace.answer` sees it. What failed before any of it
        reached the client costs nothing. Raises TokenRateLimit."""
        return _NOTHING if usage is None or not usage.is_metered else self._metered(usage, call)

    @contextmanager
    def _metered(self, usage: Usage, call: Call) -> Iterator[None]:
        usage.admit(call.prompt.tokens, self._clock())
        answer = call.trace.answer = MeteredAnswer(usage, self._clock)
        try:
            yield
        except GatewayError:
            if not answer.began:
                usage.settle(0, self._clock())
            raise
        finally:
            if answer.began:
                usage.settle(call.prompt.tokens + answer.tokens, self._clock())


class MeteredAnswer(AnswerCount):
    """Pays as it counts."""

    def __init__(self, usage: Usage, clock: Callable[[], float]) -> None:
        self._usage = usage
        self._clock = clock
        self.began = False

    def feed(self, data: bytes) -> None:
        before = self.chunks
        super().feed(data)
        self.began = True
        self._usage.spend(self.chunks - before, self._clock())
