"""Settings that change while the gateway runs: on SIGHUP, which opens the access log anew as well, and when a file
that they were read from changes.

All is read and checked first. Only what can be used as a whole is used; else nothing changes, and one line says what is
wrong. What a running gateway can't change is named.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from aiohttp import web

from gateway.config import ConfigError, GatewayConfig
from gateway.keys import BUDGET, GATE, LIVE, OBSERVER, POOLS, UPSTREAM
from gateway.policies import Names, use
from gateway.public_prompts import PublicPrompts
from gateway.routing.registry import UnknownPolicy, make_policy
from gateway.tenants.key_file import KeyFileError, KeySet, read_keys
from gateway.tokens import PromptTokenizer
from replica.protocol.signing import FleetKeyError
from replica.protocol.text import TemplateError

log = logging.getLogger(__name__)

POLL_S = 1.0
HOT: tuple[str, ...] = ("policy", "shadow_policy", "timeouts", "retry_budget", "isolate_tenants", "public_prompts")
HOT += ("cors_origins", "admin_key", "upstream_keys", "log_level", "files")
"""Of GatewayConfig. Of the key file the content, not which it is: to open a gateway to all takes a restart."""

_Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that will be used, made."""

    config: GatewayConfig
    keys: KeySet | None
    public: tuple[PublicPrompts, ...]
    """By pool."""
    cold: tuple[str, ...]
    """Settings that differ and wait for a restart."""


class Reloader:
    def __init__(self, app: web.Application, load: Callable[[], GatewayConfig], poll_s: float = POLL_S) -> None:
        self._app = app
        self._load = load
        self._poll_s = poll_s
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """As SIGHUP does."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        files, known = self._app[LIVE].config.files, self._versions()
        while True:
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._asked.wait()
                self._app[OBSERVER].access_log.reopen()
            except TimeoutError:
                if self._versions() == known:
                    continue
            self._asked.clear()
            known = self._versions()
            await self.reload()
            if self._app[LIVE].config.files != files:
                files, known = self._app[LIVE].config.files, self._versions()

    async def reload(self) -> None:
        """All of it, or nothing."""
        live = self._app[LIVE]
        try:
            loaded = await asyncio.to_thread(self._prepare, live.config)
        except (ConfigError, FleetKeyError, KeyFileError, UnknownPolicy) as error:
            log.warning("nothing is changed: %s", error)
            return
        changed = self._use(live.config, loaded)
        waits = f"; needs a restart: {', '.join(loaded.cold)}" if loaded.cold else ""
        log.info("settings read again: %s%s", f"changed {', '.join(changed)}" if changed else "no change", waits)

    def _prepare(self, old: GatewayConfig) -> Loaded:
        new = self._load()
        cold = tuple(
            field.name
            for field in fields(GatewayConfig)
            if field.name not in HOT and getattr(old, field.name) != getattr(new, field.name)
        )
        config = replace(old, **{name: getattr(new, name) for name in HOT})
        for name in filter(None, (config.policy, config.shadow_policy)):
            make_policy(name)
        public = tuple(public_prompts(pool.tokenizer, config) for pool in self._app[POOLS].chosen(None))
        return Loaded(config, read_key_set(config), public, cold)

    def _use(self, old: GatewayConfig, loaded: Loaded) -> list[str]:
        """Nothing here can fail. Returns the names of what is different now."""
        app, new = self._app, loaded.config
        changed = [name for name in HOT if name != "files" and getattr(old, name) != getattr(new, name)]
        if loaded.keys != app[GATE].keys:
            app[GATE].keys = loaded.keys
            changed.append(f"keys ({loaded.keys})")
        app[UPSTREAM].use(new.timeouts, new.upstream_keys)
        for pool, public in zip(app[POOLS].chosen(None), loaded.public, strict=True):
            pool.tokenizer.public = public
            pool.dispatcher.use(new.timeouts)
            if pool.prober is not None:
                pool.prober.keys = new.upstream_keys
        app[BUDGET].share = new.retry_budget
        # One that was chosen by POST /admin/policy meanwhile goes on, unless the settings now say something else.
        if {"policy", "shadow_policy"} & set(changed) and new.policy_file is None:
            for pool in app[POOLS]:
                use(Names(new.policy, new.shadow_policy), pool.router, pool.shadow)
        if "log_level" in changed:
            logging.getLogger().setLevel(new.log_level.upper())
        app[LIVE].config = new
        return changed

    def _versions(self) -> list[_Version]:
        config = self._app[LIVE].config
        return [_version(path) for path in (*config.files, config.keys_file) if path is not None]


RELOADER = web.AppKey("RELOADER", Reloader)


def read_key_set(config: GatewayConfig) -> KeySet | None:
    """Raises KeyFileError."""
    return None if config.keys_file is None else read_keys(config.keys_file, config.isolate_tenants)


def public_prompts(tokenizer: PromptTokenizer, config: GatewayConfig) -> PublicPrompts:
    """Raises ConfigError where the model's chat template takes none of them."""
    try:
        return tokenizer.public_prompts(config.public_prompts.values())
    except TemplateError as error:
        raise ConfigError(f"public_prompts: {error}") from error


def _version(path: Path) -> _Version:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_mtime_ns, status.st_size, status.st_ino
