"""What every contender is asked. Pure: a seed gives the same prompts everywhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from loadtest import travel_text
from replica.protocol.text import ModelText

Prompts = list[list[int]]
Reply = Mapping[str, Any]

STEPS = 16
"""Decode steps that are timed. Longer ones outlast a disturbance better, but the sequences grow."""

ALL = frozenset({"ours", "ours_fp32", "transformers", "vllm_cpu", "llama_cpp"})
BATCHED = ALL - {"llama_cpp"}
OURS = frozenset({"ours"})


@dataclass(frozen=True, slots=True)
class Case:
    """One request to each of its contenders a round, with prompts that nobody has seen."""

    name: str
    group: str
    """What `--only` calls it."""
    contenders: frozenset[str]
    request: Callable[[Random, int], dict[str, Any]]
    """From a source of randomness and the size of the vocabulary."""
    samples: Callable[[Reply], dict[str, float]]
    """Numbers by name; those of `rate` are compared between contenders."""


def _random(rng: Random, vocabulary: int, tokens: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(tokens)]


def _prefill(tokens: int) -> Callable[[Random, int], dict[str, Any]]:
    return lambda rng, vocabulary: {"op": "prefill", "prompts": [_random(rng, vocabulary, tokens)]}


def _batch(op: str, count: int, own: int, shared: int = 0, **more: Any) -> Callable[[Random, int], dict[str, Any]]:
    def request(rng: Random, vocabulary: int) -> dict[str, Any]:
        prefix = _random(rng, vocabulary, shared)
        prompts = [prefix + _random(rng, vocabulary, own) for _ in range(count)]
        return {"op": op, "prompts": prompts, "steps": STEPS} | more

    return request


def _cached_and_cold(rng: Random, vocabulary: int) -> dict[str, Any]:
    prefix = _random(rng, vocabulary, 1000)
    return {"op": "prefill", "prompts": [prefix + _random(rng, vocabulary, 25) for _ in range(2)]}


def _rate(reply: Reply) -> dict[str, float]:
    computed = reply.get("prompt_tokens_computed")
    return {"rate": reply["tokens_per_s"]} | ({} if computed is None else {"computed": computed})


def _share(reply: Reply) -> dict[str, float]:
    return {"share": reply["share"], "step_ms": reply["step_ms"]}


CASES = (
    Case("prefill_1024", "prefill", ALL, _prefill(1024), lambda reply: {"rate": 1024 / reply["seconds"][0]}),
    Case("decode_b1", "decode", ALL, _batch("decode", 1, 200), _rate),
    Case("decode_b8", "decode", BATCHED, _batch("decode", 8, 200), _rate),
    Case("decode_b32", "decode", BATCHED, _batch("decode", 32, 200), _rate),
    Case("agents50", "agents", BATCHED, _batch("decode", 50, 25, shared=200), _rate),
    Case(
        "ttft_cached",
        "ttft",
        OURS,
        _cached_and_cold,
        lambda reply: {"over_cold": reply["seconds"][1] / reply["seconds"][0], "seconds": reply["seconds"][1]},
    ),
    Case("overhead_greedy", "overhead", OURS, _batch("overhead", 32, 200, temperature=0.0, top_p=1.0), _share),
    Case("overhead_sampled", "overhead", OURS, _batch("overhead", 32, 200, temperature=1.0, top_p=0.95), _share),
    Case("match_2000", "match", OURS, lambda rng, vocabulary: {"op": "match", "tokens": 2000}, dict),
)

COMPARED = tuple(case for case in CASES if case.contenders > OURS)
GROUPS = (*dict.fromkeys(case.group for case in CASES), "perplexity", "replica")


def fixed_text_windows(text: ModelText, windows: int = 8, tokens: int = 1024) -> Prompts:
    """The text on which perplexity is stated: the travel example's notes, rules and questions, of one seed."""
    rng = Random(20_240)
    rules = travel_text.guidelines(rng)
    ids: list[int] = []
    while len(ids) < windows * tokens:
        city = rng.choice(travel_text.CITIES)
        notes = travel_text.hotel_notes(rng, city)
        lines = [next(rules) for _ in range(3)] + [next(notes) for _ in range(14)]
        lines += [travel_text.question(rng, city), travel_text.follow_up(rng, city)]
        ids += text.tokenizer.encode(" ".join(lines) + "\n\n", add_special_tokens=False).ids
    return [ids[start : start + tokens] for start in range(0, windows * tokens, tokens)]
