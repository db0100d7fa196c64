"""What changes while a gateway runs: as a whole, or not at all."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.keys import BUDGET, GATE, LIVE, POOLS, UPSTREAM
from gateway.reload import RELOADER
from gateway.settings import load
from gateway.tenants.key_file import digest_of
from tests.gateway.fakes import Stack, chat_body, eventually, gateway
from tests.gateway.test_keys import ALICE, BOB, SYSTEM, bearer, write_keys
from tests.processes import Process


def put(path: Path, text: str) -> None:
    """As a whole, as those do who change a file that is read."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


@dataclass
class Setup:
    stack: Stack
    file: Path
    keys: Path
    base: str
    caplog: pytest.LogCaptureFixture

    def settings(self, text: str) -> None:
        put(self.file, self.base + text)

    def said(self) -> list[str]:
        return [record.message for record in self.caplog.records if record.name == "gateway.reload"]

    async def says(self, words: str) -> None:
        await eventually(lambda: words in "\n".join(self.said()))

    async def status(self, key: str) -> int:
        async with self.stack.http.get(f"{self.stack.url}/v1/models", headers=bearer(key)) as response:
            return response.status


@pytest.fixture
async def setup(
    model_folder: Path, redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Setup]:
    caplog.set_level(logging.INFO)
    keys = write_keys(tmp_path / "keys.toml")
    base = f'model = "{model_folder}"\nredis_url = "{redis_url}"\nkeys_file = "keys.toml"\n'
    file = tmp_path / "gateway.toml"
    put(file, base)
    read = partial(load, file, {})
    async with gateway(read(), load=read) as stack:
        yield Setup(stack, file, keys, base, caplog)


async def test_all_that_can_change_does_in_one_line(setup: Setup) -> None:
    app = setup.stack.app
    setup.settings(
        'policy = "round_robin"\nshadow_policy = "ttft"\nqueue_timeout = 1.5\nidle_timeout = 7\nretry_budget = 0.5\n'
        f'cors_origins = ["https://a"]\nlog_level = "debug"\nport = 9\nfleet = "x"\n[public_prompts]\np = "{SYSTEM}"\n'
    )
    level = logging.getLogger().level
    try:
        await setup.says("settings read again")
        assert logging.getLogger().level == logging.DEBUG
    finally:
        logging.getLogger().setLevel(level)
    assert (app[POOLS].first.router.policy.name, app[POOLS].first.shadow.policy.name) == ("round_robin", "ttft")  # type: ignore[union-attr]
    assert (app[UPSTREAM].timeouts.idle_s, app[BUDGET].share) == (7, 0.5)
    assert app[LIVE].config.cors_origins == ("https://a",)
    assert app[POOLS].first.tokenizer.public.tokens_of(app[POOLS].first.tokenizer._chat_below(SYSTEM, "Hello")) > 0
    [line] = setup.said()
    assert line == (
        "settings read again: changed policy, shadow_policy, timeouts, retry_budget, public_prompts, cors_origins, "
        "log_level; needs a restart: port, fleet"
    )
    assert app[LIVE].config.fleet == "default"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("queue_timeout = 0", "queue_timeout: Input should be greater than 0"),
        ("prot = 1", "prot: there is no such setting"),
        ('policy = "nonsense"', "unknown policy 'nonsense'"),
        ("port =", "it is no TOML"),
        ('[public_prompts]\np = { file = "none" }', "public_prompts.p"),
    ],
)
async def test_what_is_wrong_leaves_all_as_it_was(setup: Setup, wrong: str, said: str) -> None:
    before = setup.stack.app[LIVE].config
    setup.settings(f'retry_budget = 0.9\nshadow_policy = "round_robin"\n{wrong}\n')
    await setup.says("nothing is changed: ")
    await asyncio.sleep(0.2)
    [line] = setup.said()
    assert said in line
    assert setup.stack.app[LIVE].config == before
    assert (setup.stack.app[BUDGET].share, setup.stack.app[POOLS].first.shadow.policy) == (0.2, None)
    setup.settings("retry_budget = 0.9\n")
    await setup.says("changed retry_budget")


async def test_keys_come_and_go(setup: Setup) -> None:
    assert [await setup.status(key) for key in (ALICE, BOB, "sk-new-0123456789")] == [200, 200, 401]
    text = setup.keys.read_text()
    new = f'[[keys]]\nname = "new"\ntenant = "carol"\nsha256 = "{digest_of("sk-new-0123456789").hex()}"\n'
    put(setup.keys, text.split("[[keys]]")[0] + new)
    await setup.says("changed keys (1 keys of 1 tenants)")
    assert [await setup.status(key) for key in (ALICE, BOB, "sk-new-0123456789")] == [401, 401, 200]


@pytest.mark.parametrize("wrong", ["[[keys]]\nname = 1", "nonsense", ""])
async def test_a_bad_key_file_keeps_the_old_keys(setup: Setup, wrong: str) -> None:
    put(setup.keys, f'salt_secret = "0123456789abcdef"\n{wrong}\n')
    await setup.says("nothing is changed: key file")
    assert [await setup.status(key) for key in (ALICE, BOB, "x")] == [200, 200, 401]
    setup.keys.unlink()
    await setup.says("No such file")
    assert [await setup.status(key) for key in (ALICE, BOB, "x")] == [200, 200, 401]


async def test_no_reload_opens_the_gateway_to_all(setup: Setup) -> None:
    put(setup.file, setup.base.replace('keys_file = "keys.toml"\n', ""))
    await setup.says("needs a restart: keys_file")
    assert setup.stack.app[GATE].keys is not None
    assert await setup.status("x") == 401


async def test_a_policy_chosen_at_run_time_goes_on(setup: Setup) -> None:
    url = f"{setup.stack.url}/admin/policy"
    assert (await setup.stack.http.post(url, json={"policy": "least_tokens"})).status == 200
    setup.stack.app[RELOADER].ask()
    await setup.says("settings read again: no change")
    assert setup.stack.app[POOLS].first.router.policy.name == "least_tokens"


@asynccontextmanager
async def process(folder: Path, text: str) -> AsyncIterator[tuple[Process, str, Path]]:
    file = folder / "gateway.toml"
    put(file, text)
    running = Process(["gateway", "--config", str(file)], folder / "log")
    try:
        yield running, running.wait_for(r"gateway ready on (http\S+)"), file
    finally:
        assert running.stop() == 0


async def test_on_sighup_settings_are_read_again(model_folder: Path, redis_url: str, tmp_path: Path) -> None:
    base = f'model = "{model_folder}"\nredis_url = "{redis_url}"\nport = 0\n'
    async with (
        process(tmp_path, base + "queue_timeout = 0.2\n") as (running, url, file),
        aiohttp.ClientSession() as http,
    ):
        running.signal(signal.SIGHUP)
        running.wait_for("settings read again: (no change)")
        put(file, base + "queue_timeout = 0.3\n")
        running.signal(signal.SIGHUP)
        running.wait_for("settings read again: changed (timeouts)")
        response: Any = await http.post(f"{url}/v1/chat/completions", json=chat_body(model=model_folder.name))
        assert "waited 0.3 s" in await response.text()
