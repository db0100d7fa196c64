"""Who may import whom (see README, "The tree"): what is imported at the top of a file, or anywhere in it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("adopt", "gateway", "replica", "kernels", "native", "loadtest", "deploy")


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


INSIDERS = tuple(
    ROOT / "loadtest" / name
    for name in (
        "engine_bench/contenders",
        "index_bench",
        "routing_bench",
        "eviction_bench",
        "simulate",
        "gateway_bench",
        "gpu",
    )
)
"""Where loadtest looks at a part from inside, and not only at the public HTTP API: programs that each wrap an engine,
ours among them; the gateway's index and policies; the replica's prefix cache; the simulator, which runs the pure parts
in virtual time; and the check of kernels and steps on a card."""


def files(*patterns: str) -> list[Path]:
    """What is in INSIDERS only where the pattern says so."""
    found = [
        path
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        if path.parent not in INSIDERS or pattern.startswith(str(path.parent.relative_to(ROOT)))
    ]
    assert found, f"no files match {patterns}"
    return found


def every_file() -> list[Path]:
    return files(
        *(f"{package}/**/*.py" for package in OURS),
        "loadtest/engine_bench/contenders/*.py",
        "loadtest/index_bench/*.py",
        "loadtest/simulate/*.py",
        "loadtest/routing_bench/*.py",
        "loadtest/eviction_bench/*.py",
        "loadtest/gateway_bench/*.py",
        "loadtest/gpu/*.py",
    )


def forbidden(path: Path, allowed: tuple[str, ...], among: tuple[str, ...]) -> set[str]:
    """Imports of modules `among` that aren't below `allowed`."""

    def below(name: str, prefixes: tuple[str, ...]) -> bool:
        return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)

    return {name for name in imports_of(path) if below(name, among) and not below(name, allowed)}


ADOPT_MAY_USE: tuple[str, ...] = ("adopt", "replica.protocol", "replica.digest", "replica.publisher", "replica.wire")
ADOPT_MAY_USE += ("replica.cost_model", "replica.cache.manager", "replica.answer.tool_calls", "replica.model.source")
ADOPT_MAY_USE += ("replica.step",)
"""An adopted engine is a replica in all but the engine: it publishes as ours do, fits the same cost model, reads tool
calls in the same way; and none of that loads torch."""

SIMULATE_MAY_USE: tuple[str, ...] = ("loadtest", "replica.protocol", "replica.scheduler", "replica.sequence")
SIMULATE_MAY_USE += ("replica.cache.manager", "replica.cache.naive", "replica.config", "replica.profiles")
SIMULATE_MAY_USE += ("gateway.fleet", "gateway.router", "gateway.identity", "gateway.index", "gateway.routing")
SIMULATE_MAY_USE += ("gateway.intents.outbox", "gateway.trust", "gateway.hold.desk", "gateway.hold.guest")
"""The parts that decide; none that talks, computes or reads a clock."""


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        (["adopt/**/*.py"], ADOPT_MAY_USE),
        (["native/**/*.py"], ("native",)),
        (["kernels/**/*.py"], ("kernels", "native")),
        (["replica/**/*.py"], ("replica", "kernels")),
        (["replica/protocol/**/*.py"], ("replica.protocol",)),
        (["gateway/**/*.py"], ("gateway", "replica.protocol", "native")),
        (["loadtest/**/*.py"], ("loadtest", "replica.protocol")),
        (["loadtest/engine_bench/contenders/*.py"], ("loadtest.engine_bench.contenders", "replica")),
        (["loadtest/simulate/*.py"], SIMULATE_MAY_USE),
        (["loadtest/gpu/*.py"], ("loadtest", "replica", "kernels")),
        (["loadtest/index_bench/*.py"], ("loadtest", "gateway", "replica.protocol")),
        (["loadtest/routing_bench/*.py"], ("loadtest", "gateway", "replica.protocol", "replica.config")),
        (["loadtest/gateway_bench/*.py"], ("loadtest", "replica.protocol", "native")),
        (["loadtest/eviction_bench/*.py"], ("loadtest", "replica.protocol", "replica.cache", "replica.sequence")),
        (["gateway/routing/*.py"], ("gateway.routing", "gateway.config", "gateway.errors", "replica.protocol")),
        (["gateway/routing/native/*.py"], ("gateway.routing", "replica.protocol", "native")),
        (["gateway/index/prefix_index.py", "gateway/index/plain_index.py"], ("gateway.index", "replica.protocol")),
        (["gateway/http/*.py"], ("gateway.http", "gateway.errors", "replica.protocol.strict")),
        (["gateway/hold/lane.py", "gateway/hold/shares.py"], ("gateway.hold",)),
        (["gateway/intents/*.py"], ("gateway.intents", "replica.protocol")),
        (["gateway/index/native_index.py"], ("gateway.index", "replica.protocol", "native")),
    ],
)
def test_packages_keep_to_themselves(patterns: list[str], allowed: tuple[str, ...]) -> None:
    broken = {str(path): names for path in files(*patterns) if (names := forbidden(path, allowed, OURS))}
    assert broken == {}


PURE = ["replica/scheduler.py", "replica/sequence.py", "replica/digest.py", "replica/cache/block_pool.py"]
PURE += ["replica/cache/radix.py", "replica/cache/naive.py", "replica/cache/manager.py", "replica/cache/eviction/*.py"]
PURE += ["replica/urgency.py", "replica/backlog.py", "replica/admission.py", "replica/step.py"]
PURE += ["replica/timing/pace.py", "replica/timing/words.py"]
PURE += ["gateway/fleet.py", "gateway/trust.py", "gateway/router.py", "gateway/index/*_index.py"]
PURE += ["gateway/index/follower.py", "gateway/index/pulses.py"]
PURE += ["gateway/http/head.py", "gateway/http/head_memo.py", "gateway/http/body.py", "gateway/http/exchange.py"]
PURE += ["gateway/events.py", "gateway/several/merge.py", "gateway/tenants/ledger.py", "gateway/tenants/meter.py"]
PURE += ["gateway/recording/lines.py", "gateway/recording/answer.py", "loadtest/replay/figures.py"]
PURE += ["gateway/health.py", "gateway/resume.py"]
PURE += [f"gateway/hold/{name}.py" for name in ("guest", "shares", "lane", "plain_lane", "bounds", "terms")]
PURE += ["gateway/intents/outbox.py", "gateway/intents/peers.py"]
PURE += ["gateway/public_prompts.py", "gateway/tenants/bucket.py", "gateway/tenants/meter.py"]
PURE += ["gateway/tenants/caller.py", "gateway/tenants/key_file.py"]
PURE += ["adopt/events.py", "adopt/mirror.py", "adopt/requests.py", "adopt/answers.py", "adopt/traffic.py"]
IMPURE_MODULES: tuple[str, ...] = (
    "torch",
    "numpy",
    "aiohttp",
    "asyncio",
    "time",
    "random",
    "redis",
    "socket",
    "threading",
)
IMPURE_MODULES += ("prometheus_client", "logging")


PURE_WITH_ARRAYS = ["gateway/routing/*.py", "gateway/fleet_table.py", "gateway/backlog.py", "gateway/explain.py"]
PURE_WITH_ARRAYS += ["gateway/hold/room.py", "gateway/hold/desk.py"]
"""A decision is over all replicas at once."""


def test_pure_parts_know_no_clock_no_network_no_tensors() -> None:
    broken = {str(path): names for path in files(*PURE) if (names := forbidden(path, (), IMPURE_MODULES))}
    broken |= {
        str(path): names for path in files(*PURE_WITH_ARRAYS) if (names := forbidden(path, ("numpy",), IMPURE_MODULES))
    }
    assert broken == {}


def test_aiohttp_stays_out_of_the_hot_path() -> None:
    """It serves what is rare, and is the oracle in tests."""
    hot = [path for path in files("gateway/http/*.py") if path.name != "aiohttp_exchange.py"]
    hot += files("gateway/relay.py", "gateway/events.py", "gateway/dispatch.py", "gateway/upstream.py")
    broken = {str(path): names for path in hot if (names := forbidden(path, (), ("aiohttp",)))}
    assert broken == {}


TORCH_FREE = ["replica", "replica.protocol.text", "replica.scheduler", "replica.model.source"]
TORCH_FREE += ["replica.engine_base", "replica.worker", "replica.run", "replica.timing.build"]
TORCH_FREE += [
    "adopt.run",
    "adopt.__main__",
    "native.build",
    "gateway.app",
    "deploy.cli",
    "loadtest.compare",
    "loadtest.engine_bench.run",
    "loadtest.gpu_check",
    "loadtest.simulate.simulate",
    "loadtest.replay.run",
    "replica.profiles",
]


def test_the_gateway_names_no_tensor_library() -> None:
    for path in files("gateway/**/*.py", "replica/protocol/*.py", "loadtest/**/*.py"):
        assert not forbidden(path, (), ("torch", "transformers")), path


@pytest.mark.parametrize("module", TORCH_FREE)
def test_importing_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_files_and_functions_stay_short() -> None:
    too_long = []
    for path in every_file():
        source = path.read_text()
        if source.count("\n") > 500:
            too_long.append(f"{path.name}: {source.count(chr(10))} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > 80:
                    too_long.append(f"{path.name}: {node.name} has {lines} lines")
    assert too_long == []


def test_broad_excepts_stand_only_at_the_outermost_edges() -> None:
    broad = {
        str(path.relative_to(ROOT))
        for path in every_file()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in ("Exception", "BaseException"))
        and not re_raises(node)
    }
    assert broad == {"gateway/edge.py", "loadtest/gpu/parts.py", "replica/worker.py"}


def re_raises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None
