"""What tenants and keys have used of their limits. Pure: time is passed in.

A request counts one and holds a place from its headers on. Its prompt is paid when it has been tokenised, its answer as
it goes out; what was paid too much or too little is put right at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import ConcurrencyLimit, RequestRateLimit, TokenRateLimit
from gateway.tenants.bucket import Bucket
from gateway.tenants.caller import Caller, Limits

BUSY_RETRY_S = 1
"""When one of a tenant's requests ends nobody knows."""


@dataclass(slots=True)
class Account:
    """Of one tenant, or of one key."""

    limits: Limits
    requests: Bucket | None = None
    tokens: Bucket | None = None
    running: int = 0
    elsewhere: int = 0
    """Running at other workers, as they tell."""
    spent_requests: int = 0
    spent_tokens: int = 0
    """Here, since it was first seen."""
    told: bool = False
    """Other workers know of it."""

    def obey(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.requests = _resized(self.requests, limits.requests_per_minute, now)
        self.tokens = _resized(self.tokens, limits.tokens_per_minute, now)

    def is_idle(self, now: float) -> bool:
        """Forgetting it would change nothing."""
        buckets = (self.requests, self.tokens)
        return self.running == self.elsewhere == 0 and all(bucket is None or bucket.is_full(now) for bucket in buckets)


def _resized(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    if bucket.per_minute != per_minute:
        bucket.resize(per_minute, now)
    return bucket


class Usage:
    """Of one request, which it is the context of; else close it in `finally`."""

    def __init__(self, accounts: Mapping[str, Account], changed: set[str] | None = None) -> None:
        """`changed`: takes the names of those that it changes."""
        self._accounts = accounts
        self._changed = changed
        self._open = True
        self._prepaid = False
        self.charged = 0

    def __enter__(self) -> "Usage":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def is_metered(self) -> bool:
        return any(account.tokens is not None for account in self._accounts.values())

    def admit(self, prompt_tokens: int, now: float) -> None:
        """Pays for the prompt, unless that has been done. Raises TokenRateLimit, and pays nothing, where one of the
        buckets lacks it."""
        if self._prepaid:
            return
        self.check(prompt_tokens, now)
        self.spend(prompt_tokens, now)

    def check(self, prompt_tokens: int, now: float) -> None:
        """Raises TokenRateLimit."""
        for whose, account in self._accounts.items():
            wait_s = 0.0 if account.tokens is None else account.tokens.wait_s(max(1, prompt_tokens), now)
            if wait_s:
                raise TokenRateLimit(
                    f"{whose}: the limit is {account.limits.tokens_per_minute} tokens a minute, of prompts and answers",
                    retry_after_s=wait_s,
                )

    def prepay(self, prompt_tokens: int, now: float) -> None:
        """Whatever there is: it has been checked."""
        self._prepaid = True
        self.spend(prompt_tokens, now)

    def spend(self, tokens: int, now: float) -> None:
        """Tokens of the answer, as they go out."""
        if not self._open or tokens == 0:
            return
        self.charged += tokens
        for account in self._accounts.values():
            if account.tokens is not None:
                account.tokens.take(tokens, now)
                account.spent_tokens += tokens
        if self._changed is not None:
            self._changed.update(self._accounts)

    def settle(self, tokens: int, now: float) -> None:
        """So many it has been, prompt and answer, all in all."""
        self.spend(tokens - self.charged, now)

    def withdraw(self, now: float) -> None:
        """As if it had never come."""
        self.close()
        for account in self._accounts.values():
            if account.requests is not None:
                account.requests.take(-1, now)
                account.spent_requests -= 1
        if self._changed is not None:
            self._changed.update(self._accounts)

    def close(self) -> None:
        """Gives the place back; once."""
        if self._open:
            self._open = False
            for account in self._accounts.values():
                account.running -= 1
            if self._changed is not None:
                self._changed.update(self._accounts)


def admit_all(usages: Sequence[Usage], prompt_tokens: Sequence[int], now: float) -> None:
    """Pays for the prompts of requests of one caller, all or none. Raises TokenRateLimit."""
    usages[0].check(sum(prompt_tokens), now)
    for usage, tokens in zip(usages, prompt_tokens, strict=True):
        usage.prepay(tokens, now)


class Meter:
    MAX_IDLE = 10_000

    def __init__(self, shared: bool = False) -> None:
        """`shared`: with other workers; see ledger.py."""
        self._accounts: dict[str, Account] = {}
        self.changed: set[str] | None = set() if shared else None
        """Names of accounts that others haven't been told of as they are now."""

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def running(self) -> int:
        return sum(account.running for account in self._accounts.values())

    def begin(self, caller: Caller, now: float) -> Usage:
        """Raises ConcurrencyLimit or RequestRateLimit, and has counted nothing then."""
        if not caller.limits:
            return Usage({})
        accounts = {whose: self._account(whose, limits, now) for whose, limits in caller.limits.items()}
        for whose, account in accounts.items():
            _check(whose, account, now)
        self._take(accounts, 1, now)
        return Usage(accounts, self.changed)

    def begin_several(self, caller: Caller, count: int, now: float) -> list[Usage]:
        """So many requests, or none. Raises as `begin`."""
        accounts = {whose: self._account(whose, limits, now) for whose, limits in caller.limits.items()}
        for whose, account in accounts.items():
            _check(whose, account, now, count)
        self._take(accounts, count, now)
        return [Usage(accounts, self.changed) for _ in range(count)]

    def _take(self, accounts: Mapping[str, Account], count: int, now: float) -> None:
        for account in accounts.values():
            account.running += count
            if account.requests is not None:
                account.requests.take(count, now)
                account.spent_requests += count
        if self.changed is not None:
            self.changed.update(accounts)

    def known(self, whose: str) -> Account | None:
        return self._accounts.get(whose)

    def open(self, whose: str, limits: Limits, now: float) -> Account:
        """That of a name which is used elsewhere; what is known of its limits here counts."""
        account = self._accounts.get(whose)
        return self._account(whose, limits if account is None else account.limits, now)

    def in_use(self, now: float) -> list[str]:
        """Names of those whose state matters to others."""
        return [whose for whose, account in self._accounts.items() if not account.is_idle(now)]

    def _account(self, whose: str, limits: Limits, now: float) -> Account:
        account = self._accounts.get(whose)
        if account is None:
            if len(self._accounts) >= self.MAX_IDLE:
                self._accounts = {name: kept for name, kept in self._accounts.items() if not kept.is_idle(now)}
            account = self._accounts[whose] = Account(limits)
            account.obey(limits, now)
        elif account.limits != limits:
            account.obey(limits, now)
        return account


def _check(whose: str, account: Account, now: float, count: int = 1) -> None:
    limits = account.limits
    each = "" if count == 1 else f", and each of {count} prompts is one"
    running = account.running + account.elsewhere
    if limits.concurrent_requests is not None and running + count > limits.concurrent_requests:
        raise ConcurrencyLimit(
            f"{whose}: the limit is {limits.concurrent_requests} requests at a time{each}", retry_after_s=BUSY_RETRY_S
        )
    wait_s = 0.0 if account.requests is None else account.requests.wait_s(count, now)
    if wait_s:
        raise RequestRateLimit(
            f"{whose}: the limit is {limits.requests_per_minute} requests a minute{each}", retry_after_s=wait_s
        )
