import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.fleet import Fleet
from gateway.index.factory import make_index
from gateway.policies import Names, PolicyFileError, follow, read_policy_file, use
from gateway.router import Router
from gateway.routing.round_robin import RoundRobin
from gateway.routing.shadow import Shadow
from gateway.routing.ttft import Ttft
from tests.gateway.fakes import IDENTITY, eventually


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("p.toml", 'policy = "ttft"', Names("ttft")),
        ("p.toml", '# why\npolicy = "ttft"\nshadow = "round_robin"\n', Names("ttft", "round_robin")),
        ("p.json", '{"policy": "ttft", "shadow": null}', Names("ttft")),
        ("p.conf", 'policy = "least_tokens"', Names("least_tokens")),
    ],
)
def test_a_file_names_both_policies(tmp_path: Path, name: str, text: str, names: Names) -> None:
    (tmp_path / name).write_text(text)
    assert read_policy_file(tmp_path / name) == names


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.toml", "", 'the field "policy"'),
        ("p.toml", 'shadow = "ttft"', 'the field "policy"'),
        ("p.toml", 'policy = "nonsense"', "unknown policy 'nonsense'; there are"),
        ("p.toml", 'policy = "ttft"\nshadow = "nonsense"', "unknown policy 'nonsense'; there are"),
        ("p.toml", "policy = 3", "policy must be a name"),
        ("p.toml", 'policy = "ttft"\nshadwo = "ttft"', "unknown field 'shadwo'; there are policy, shadow"),
        ("p.toml", 'policy = "ttft', "Unterminated string"),
        ("p.toml", "\udcff", "utf-8"),
        ("p.json", '{"policy": "ttft"', "p.json"),
        ("p.json", "[]", 'the field "policy"'),
    ],
)
def test_a_broken_file_is_refused_as_a_whole(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(PolicyFileError, match=said) as refused:
        read_policy_file(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match=r"none\.toml: No such file"):
        read_policy_file(tmp_path / "none.toml")


def test_what_goes_on_keeps_its_memory() -> None:
    router, shadow = Router(Fleet(IDENTITY), make_index(), Ttft()), Shadow(RoundRobin())
    policy, looking_on = router.policy, shadow.policy
    use(Names("ttft", "round_robin"), router, shadow)
    assert router.policy is policy and shadow.policy is looking_on
    use(Names("round_robin"), router, shadow)
    assert (router.policy.name, name_of(shadow)) == ("round_robin", None)
    use(Names("round_robin", "ttft"), router, shadow)
    assert (router.policy.name, name_of(shadow)) == ("round_robin", "ttft")


def name_of(shadow: Shadow) -> str | None:
    return shadow.policy.name if shadow.policy else None


@asynccontextmanager
async def following(path: Path) -> AsyncIterator[list[Names]]:
    told: list[Names] = []
    task = asyncio.create_task(follow(path, told.append, poll_s=0.01))
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def put(path: Path, text: str) -> None:
    """As a whole, as those do who change a file that is read."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


async def test_each_new_version_is_told_and_a_broken_one_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.toml"
    put(path, 'policy = "ttft"')
    caplog.set_level(logging.WARNING)
    async with following(path) as told:
        await eventually(lambda: told == [Names("ttft")])
        put(path, 'policy = "round_robin"\nshadow = "ttft"')
        await eventually(lambda: len(told) == 2)
        put(path, "policy =")
        await eventually(lambda: bool(caplog.records))
        await asyncio.sleep(0.1)
        path.unlink()
        await eventually(lambda: len(caplog.records) == 2)
        await asyncio.sleep(0.1)
        put(path, 'policy = "least_tokens"')
        await eventually(lambda: len(told) == 3)
    assert told[1:] == [Names("round_robin", "ttft"), Names("least_tokens")]
    assert len(caplog.records) == 2
    assert all("what ruled before goes on" in record.message for record in caplog.records)
