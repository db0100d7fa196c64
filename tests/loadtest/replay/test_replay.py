"""Recorded -> replayed -> simulated: a real gateway, and two replicas that keep time."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.errors import CompareError
from loadtest.gateway_api import GatewayApi
from loadtest.replay.page import render_page
from loadtest.replay.report import ReplayReport, publish
from loadtest.replay.run import ReplayOptions, replay
from loadtest.replay.warm_up import WarmUp
from loadtest.trace.file import Times, read_trace
from loadtest.trace.flags import Loop
from loadtest.trace.plan import PlanOptions
from tests.processes import Process, eventually, run_command

REQUESTS = 24


@dataclass(frozen=True)
class Fleet:
    url: str
    record: Path


@pytest.fixture(scope="module")
def fleet(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    timing = ["--engine", "timing", "--profile", "h100-qwen3-32b", "--time-scale", "0.5", "--kv-tokens", "4096"]
    flags = ["--replicas", "2", "--model", str(tiny_folder), "--port", "0", "--record", str(folder / "recorded.jsonl")]
    process = Process(["deploy.cli", "up", *flags, *timing], folder / "log")
    yield Fleet(process.wait_for(r"gateway +(http\S+)", timeout_s=120), folder / "recorded.jsonl")
    assert process.stop() == 0


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three contexts of 4 blocks, each asked about 8 times, twice a session, with a block and a bit of its own."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for number in range(REQUESTS):
        context = [100 * (number % 3) + block for block in range(4)]
        ids = [*context, 1000 + 2 * number, 1001 + 2 * number]
        line = {"timestamp": 60 * number, "input_length": 85, "output_length": 4, "hash_ids": ids}
        lines.append(json.dumps(line | {"session_id": f"s{number // 6 * 3 + number % 3}"}) + "\n")
    path.write_text("".join(lines))
    return path


def options(fleet: Fleet, trace: Path, **changes: object) -> ReplayOptions:
    return replace(ReplayOptions(fleet.url, trace), **changes)  # type: ignore[arg-type]


async def test_two_policies_from_empty_caches_and_the_simulation_of_both(
    fleet: Fleet, trace: Path, tmp_path: Path
) -> None:
    report = await replay(
        options(fleet, trace, policies=("round_robin", "ttft"), compares_simulation=True, warm_up=WarmUp(share=0.25))
    )
    assert report.order == ["round_robin", "ttft"]
    for policy, figures in report.policies.items():
        assert (figures["requests"], figures["requests_failed"], figures["requests_not_sent"]) == (18, 0, 0)
        assert figures["prompt_tokens"] == 18 * 85 and figures["output_tokens"] == 18 * 4
        # All contexts were seen in the warm-up: whoever finds them takes 4 blocks of 16.
        assert figures["hit_infinite"] == figures["hit_belady"] == 64 / 85
        assert figures["hit"] <= figures["hit_infinite"] and figures["ttft_mean_s"] >= figures["ttft_mean_bound_s"]
        assert report.agreement is not None
        hit = report.agreement["policies"][policy]["hit"]
        assert hit["measured"] == figures["hit"] and abs(hit["difference"]) < 0.15
        assert len(report.samples[policy]) == REQUESTS
    check_files(report, tmp_path)


def check_files(report: ReplayReport, folder: Path) -> None:
    console = Console(record=True, width=100)
    written, page = publish(report, folder, console)
    text = console.export_text()
    assert "limit of any size" in text and "ttft: TTFT mean" in text
    assert json.loads(written.read_text())["policies"]["ttft"]["hit"] == report.policies["ttft"]["hit"]
    html = page.read_text()
    assert html.count("<svg") == 4 and "Measured and simulated" in html and "http://" not in html.replace("w3.org", "")


async def test_sessions_wait_for_their_answers(fleet: Fleet, trace: Path) -> None:
    plan = PlanOptions(Loop.CLOSED, limit=8)
    report = await replay(options(fleet, trace, plan=plan, resets_caches=True))
    (figures,) = report.policies.values()
    assert report.trace["loop"] == "closed" and (figures["requests"], figures["requests_failed"]) == (8, 0)
    assert not any("as they were found" in note for note in report.notes)


async def test_recorded_replayed_simulated(fleet: Fleet, trace: Path, tmp_path: Path) -> None:
    """The gateway's own file has the same shape as the trace that was played, and everything else reads it."""
    make_answers_5_long(trace)
    await replay(options(fleet, trace, resets_caches=True))
    await asyncio.to_thread(eventually, lambda: len(lines_of_5(fleet.record)) == REQUESTS)
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("\n".join(lines_of_5(fleet.record)) + "\n")
    played, again = read_trace(trace), read_trace(recorded)
    assert again.times is Times.ARRIVALS and again.block == 16
    assert [(line.tokens, line.output) for line in again.lines] == [(85, 5)] * REQUESTS
    # Whatever came in which order: contexts, blocks and sessions are shared as they were.
    for lines in (played.lines, again.lines):
        assert Counter(Counter(tuple(line.blocks[:4]) for line in lines).values()) == {8: 3}
        assert len({block for line in lines for block in line.blocks}) == 3 * 4 + REQUESTS * 2
        assert len({(line.session, tuple(line.blocks[:4])) for line in lines}) == len({x.session for x in lines}) == 12

    report = await replay(options(fleet, recorded, resets_caches=True))
    (figures,) = report.policies.values()
    assert (figures["requests"], figures["requests_failed"]) == (REQUESTS, 0)
    arguments = ["simulate", "--trace", str(recorded), "--like", fleet.url, "--seeds", "1", "--replicas", "3"]
    result = await asyncio.to_thread(run_command, "deploy.cli", *arguments, "--out", str(tmp_path / "simulated"))
    assert result.returncode == 0, result.stderr
    simulated = json.loads((tmp_path / "simulated" / "report.json").read_text())
    assert simulated["fleet"]["replicas"] == 3 and simulated["fleet"]["profile"]["kv_tokens"] == 4096
    assert simulated["rates"][0]["policies"]["ttft"]["runs"][0]["requests"] == REQUESTS


def make_answers_5_long(trace: Path) -> None:
    """As no other test's are."""
    trace.write_text(trace.read_text().replace('"output_length": 4', '"output_length": 5'))


def lines_of_5(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if '"output_length":5,' in line]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policies": ("nonsense",)}, "nonsense"),
        ({"policies": ("ttft", "ttft")}, "--policies"),
        ({"trace": Path("none.jsonl")}, "none.jsonl: No such file"),
        ({"url": "http://127.0.0.1:9"}, "can't reach"),
    ],
)
async def test_what_is_wrong_is_said(fleet: Fleet, trace: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(CompareError) as caught:
        await replay(replace(ReplayOptions(fleet.url, trace), **changes))  # type: ignore[arg-type]
    assert words in str(caught.value)


async def test_prompts_beyond_the_context_are_left_out(fleet: Fleet, tmp_path: Path) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        longest = await GatewayApi(session, fleet.url).max_context()
    path = tmp_path / "long.jsonl"
    long = {"timestamp": 0, "input_length": longest, "output_length": 9, "hash_ids": list(range(-(-longest // 16)))}
    path.write_text(json.dumps(long) + "\n")
    with pytest.raises(CompareError, match="no request fits"):
        await replay(options(fleet, path))
    path.write_text(json.dumps(long) + "\n" + json.dumps(long | {"input_length": 16, "hash_ids": [5]}) + "\n")
    report = await replay(options(fleet, path))
    assert report.trace["left_out"] == 1 and "1 requests were left out" in render_page(report)


def test_the_command(fleet: Fleet, trace: Path, tmp_path: Path) -> None:
    flags = ["--trace", str(trace), "--url", fleet.url, "--limit", "3", "--out", str(tmp_path / "out")]
    result = run_command("deploy.cli", "replay", *flags)
    assert result.returncode == 0 and "Prompt tokens from cache" in result.stdout, result.stderr
    assert (tmp_path / "out" / "report.html").is_file()
    wrong = run_command("deploy.cli", "replay", *flags, "--warm-up", "soon")
    assert wrong.returncode == 1 and wrong.stderr.startswith("replay: --warm-up")
