"""What tenants and keys have used of their limits. Pure: time is passed in.

A request counts one and holds a place from its headers on. Its prompt is paid when it has been tokenised, its answer as
it goes out; what was paid too much or too little is put right at the end.
"""

from collections.abc import Mapping
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

    def obey(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.requests = _resized(self.requests, limits.requests_per_minute, now)
        self.tokens = _resized(self.tokens, limits.tokens_per_minute, now)

    def is_idle(self, now: float) -> bool:
        """Forgetting it would change nothing."""
        buckets = (self.requests, self.tokens)
        return self.running == 0 and all(bucket is None or bucket.is_full(now) for bucket in buckets)


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

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self._accounts = accounts
        self._open = True
        self.charged = 0

    def __enter__(self) -> "Usage":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def is_metered(self) -> bool:
        return any(account.tokens is not None for account in self._accounts.values())

    def admit(self, prompt_tokens: int, now: float) -> None:
        """Pays for the prompt. Raises TokenRateLimit, and pays nothing, where one of the buckets lacks it."""
        for whose, account in self._accounts.items():
            wait_s = 0.0 if account.tokens is None else account.tokens.wait_s(max(1, prompt_tokens), now)
            if wait_s:
                raise TokenRateLimit(
                    f"{whose}: the limit is {account.limits.tokens_per_minute} tokens a minute, of prompts and answers",
                    retry_after_s=wait_s,
                )
        self.spend(prompt_tokens, now)

    def spend(self, tokens: int, now: float) -> None:
        """Tokens of the answer, as they go out."""
        if not self._open or tokens == 0:
            return
        self.charged += tokens
        for account in self._accounts.values():
            if account.tokens is not None:
                account.tokens.take(tokens, now)

    def settle(self, tokens: int, now: float) -> None:
        """So many it has been, prompt and answer, all in all."""
        self.spend(tokens - self.charged, now)

    def close(self) -> None:
        """Gives the place back; once."""
        if self._open:
            self._open = False
            for account in self._accounts.values():
                account.running -= 1


class Meter:
    MAX_IDLE = 10_000

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

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
        for account in accounts.values():
            account.running += 1
            if account.requests is not None:
                account.requests.take(1, now)
        return Usage(accounts)

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


def _check(whose: str, account: Account, now: float) -> None:
    limits = account.limits
    if limits.concurrent_requests is not None and account.running >= limits.concurrent_requests:
        raise ConcurrencyLimit(
            f"{whose}: the limit is {limits.concurrent_requests} requests at a time", retry_after_s=BUSY_RETRY_S
        )
    wait_s = 0.0 if account.requests is None else account.requests.wait_s(1, now)
    if wait_s:
        raise RequestRateLimit(
            f"{whose}: the limit is {limits.requests_per_minute} requests a minute", retry_after_s=wait_s
        )
