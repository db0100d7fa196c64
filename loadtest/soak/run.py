"""`ryokan bench soak`: half of saturation for half an hour, with clients that leave, replicas that are killed and a
Redis that restarts; then nothing may have grown, and all ledgers must be clean."""

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from rich.console import Console
from rich.table import Table

from loadtest.machine import machine, versions
from loadtest.peers.errors import PeersError
from loadtest.soak.errors import SoakError
from loadtest.soak.fleet import MODEL, SoakFleet, soak_fleet
from loadtest.soak.traffic import Traffic
from loadtest.soak.verdict import Outcome, Sample, problems

_CLIENTS = 48
"""That look for saturation."""
_LOAD_SHARE = 0.5
_KILL_EVERY_MIN_S = 12.0
_CALM_FROM = 0.875
_DEAD_SHARE = 0.04
_DEAD_MAX_S = 20.0
_REDIS_AWAY_S = 2.0


@dataclass(frozen=True, slots=True)
class SoakOptions:
    model: Path
    out_dir: Path
    seconds: float = 1800.0
    replicas: int = 3
    profile: str = "h100-qwen3-32b"
    time_scale: float = 1.0
    kv_tokens: int = 65_536
    seed: int = 1

    @property
    def replica_flags(self) -> list[str]:
        flags = ["--engine", "timing", "--profile", self.profile, "--time-scale", str(self.time_scale)]
        return [*flags, "--kv-tokens", str(self.kv_tokens)]

    @property
    def calibration_s(self) -> float:
        return min(30.0, max(3.0, self.seconds / 20))

    @property
    def rest_s(self) -> float:
        """In a long one, until connections that nobody uses are closed."""
        return 20.0 if self.seconds >= 300 else 2.0

    @property
    def sample_s(self) -> float:
        return min(5.0, self.seconds / 20)


async def soak(options: SoakOptions, console: Console) -> list[str]:
    """What was wrong at its end. Raises SoakError or PeersError where it came to none."""
    with _logs() as logs:
        async with soak_fleet(options.model, options.replicas, options.replica_flags, logs) as fleet:
            rate, outcome, traffic = await _run(options, fleet)
        found = problems(outcome)
        _publish(options, rate, outcome, traffic, found, console)
        if found:
            _say(f"logs: {logs}")
    return found


async def _run(options: SoakOptions, fleet: SoakFleet) -> tuple[float, Outcome, Traffic]:
    async with _clients() as session:
        search = Traffic(session, fleet.url, MODEL, options.seed)
        saturated = await search.closed_loop(_CLIENTS, options.calibration_s)
    if saturated == 0:
        raise SoakError(f"no request was answered: {dict(search.why)}")
    rate = _LOAD_SHARE * saturated
    _say(f"saturated at {saturated:.0f} requests/s; {rate:.0f} requests/s for {options.seconds:.0f} s")
    await asyncio.sleep(options.rest_s)
    before = await fleet.sample(0.0)
    during: list[Sample] = []
    sampling = asyncio.create_task(_sample(fleet, options.sample_s, during))
    trouble = asyncio.create_task(_trouble(fleet, options.seconds))
    try:
        async with _clients() as session:
            traffic = Traffic(session, fleet.url, MODEL, options.seed + 1)
            await traffic.open_loop(rate, options.seconds)
        await trouble
        if sampling.done():
            sampling.result()
    finally:
        for task in (sampling, trouble):
            task.cancel()
        await asyncio.gather(sampling, trouble, return_exceptions=True)
    await fleet.wait_ready()
    in_flight, queue_tokens = await fleet.counted()
    await asyncio.sleep(options.rest_s)
    after = await fleet.sample(options.seconds)
    ends = traffic.ends
    outcome = Outcome(
        before, during, after, ends["answered"], ends["left"], ends["broken"], ends["failed"], in_flight, queue_tokens,
        await fleet.ledgers(),
    )  # fmt: skip
    return rate, outcome, traffic


def _clients() -> aiohttp.ClientSession:
    """Their connections end with it: those that wait would be in the figures."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def _sample(fleet: SoakFleet, period_s: float, into: list[Sample]) -> None:
    began = time.monotonic()
    while True:
        fleet.supervise()
        into.append(await fleet.sample(time.monotonic() - began))
        await asyncio.sleep(period_s)


def troubles(seconds: float, replicas: int) -> list[tuple[float, int | None]]:
    """When what happens: the replica that is killed, or None where Redis restarts, half-way. The last eighth is calm,
    and a replica has time to come back before the next one is killed."""
    period = max(seconds / 8, _KILL_EVERY_MIN_S)
    kills = [number * period for number in range(1, 8) if number * period <= _CALM_FROM * seconds]
    if len(kills) < 2:
        kills = [seconds / 4]
    events: list[tuple[float, int | None]] = [(at, number % replicas) for number, at in enumerate(kills)]
    return sorted([*events, (seconds / 2 + 0.1, None)], key=lambda event: event[0])


async def _trouble(fleet: SoakFleet, seconds: float) -> None:
    began = time.monotonic()
    for at, replica in troubles(seconds, fleet.size):
        await asyncio.sleep(began + at - time.monotonic())
        if replica is None:
            _say("Redis restarts")
            await fleet.restart_redis(_REDIS_AWAY_S)
        else:
            _say(f"replica {replica} is killed")
            await fleet.kill_replica(replica)
            await asyncio.sleep(min(_DEAD_MAX_S, _DEAD_SHARE * seconds))
            fleet.start_replica(replica)


def _publish(
    options: SoakOptions, rate: float, outcome: Outcome, traffic: Traffic, found: list[str], console: Console
) -> None:
    """The JSON is the last line on stdout, and `soak.json` in the folder."""
    figures: dict[str, float] = {
        "rate_per_s": rate,
        "answered": outcome.answered,
        "left": outcome.left,
        "broken": outcome.broken,
        "failed": outcome.failed,
        "resident_mib_before": outcome.before.resident_mib,
        "resident_mib_after": outcome.after.resident_mib,
        "growth_mib": outcome.growth_mib,
        **{
            f"{name}_{when}": getattr(sample, name)
            for name in ("descriptors", "tasks", "threads")
            for when, sample in (("before", outcome.before), ("after", outcome.after))
        },
    }
    body: dict[str, Any] = {"bench": "soak", "machine": machine(), "versions": versions()}
    body |= {"settings": {"seconds": options.seconds, "replicas": options.replicas}, "problems": found}
    body |= {"failures": dict(traffic.why), "figures": {name: float(f"{v:.4g}") for name, v in figures.items()}}
    options.out_dir.mkdir(parents=True, exist_ok=True)
    (options.out_dir / "soak.json").write_bytes(orjson.dumps(body) + b"\n")
    samples = [asdict(sample) for sample in outcome.during]
    (options.out_dir / "soak-samples.json").write_bytes(orjson.dumps(samples, option=orjson.OPT_INDENT_2))
    table = Table(title=f"{options.seconds:.0f} s at half of saturation", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.4g}")
    console.print(table)
    for problem in found:
        console.print(f"problem: {problem}", highlight=False)
    # Not through rich, which would wrap it.
    console.file.write(orjson.dumps(body).decode() + "\n")


@contextmanager
def _logs() -> Iterator[Path]:
    """Kept where something has failed."""
    folder = Path(tempfile.mkdtemp(prefix="ryokan-soak-"))
    try:
        yield folder
    except (PeersError, SoakError) as error:
        raise SoakError(f"{error} (logs: {folder})") from error
    shutil.rmtree(folder)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
