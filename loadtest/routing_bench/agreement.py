"""How near a simulation comes to the fleet that it simulates: one made-up trace, played against a running fleet of
replicas that compute nothing, and simulated on replicas of their shape.
"""

import asyncio
import json
import random
from pathlib import Path

from rich.console import Console

from loadtest.errors import CompareError
from loadtest.replay.run import ReplayOptions, replay
from loadtest.routing_bench.ratios import OURS
from loadtest.simulate.errors import SimulateError

REQUESTS = 240
QUICK_REQUESTS = 40
RATE_PER_S = 6.0
_CONTEXTS = 30
_BLOCK = 64
_CONTEXT_BLOCKS = 32
_QUESTION_BLOCKS = 8
_OUTPUT_TOKENS = 40


def simulated_over_measured(url: str, out_dir: Path, requests: int) -> dict[str, float]:
    """Figures of the idle fleet behind that gateway, from empty caches. Raises SimulateError."""
    out_dir.mkdir(parents=True, exist_ok=True)
    trace = out_dir / "routing_trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in trace_lines(requests)))
    options = ReplayOptions(url, trace, out_dir, policies=(OURS,), compares_simulation=True)
    try:
        report = asyncio.run(replay(options, Console(stderr=True)))
    except CompareError as error:
        raise SimulateError(f"the fleet to compare simulations with: {error}") from error
    assert report.agreement is not None
    pairs = report.agreement["policies"][OURS]
    names = {"simulated_over_measured_ttft": "TTFT mean", "simulated_over_measured_ttft_p90": "TTFT p90"}
    return {
        figure: pairs[name]["simulated"] / pairs[name]["measured"] for figure, name in names.items() if name in pairs
    }


def trace_lines(requests: int) -> list[dict[str, object]]:
    """Questions over a few contexts, as a Poisson process."""
    rng = random.Random(1)
    at_s, lines, own = 0.0, [], _CONTEXTS * _CONTEXT_BLOCKS
    for _ in range(requests):
        at_s += rng.expovariate(RATE_PER_S)
        first = rng.randrange(_CONTEXTS) * _CONTEXT_BLOCKS
        hash_ids = [*range(first, first + _CONTEXT_BLOCKS), *range(own, own + _QUESTION_BLOCKS)]
        own += _QUESTION_BLOCKS
        lines.append(
            {
                "timestamp": round(1000 * at_s, 3),
                "input_length": len(hash_ids) * _BLOCK,
                "output_length": _OUTPUT_TOKENS,
                "hash_ids": hash_ids,
                "block_size": _BLOCK,
            }
        )
    return lines
