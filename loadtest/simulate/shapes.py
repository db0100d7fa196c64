"""Made-up workloads, each of the shape that tells some policies from others. Poisson arrivals; rates are of the fleet,
in proportion to its replicas. Prompts of thousands of tokens are counted in sixteens: a token stands for 16.
"""

import random
from bisect import bisect
from collections.abc import Callable, Iterator
from itertools import accumulate, count, islice, takewhile

from loadtest.simulate.prompts import AGGRESSOR, Row, make_requests
from loadtest.simulate.workload import Kind, Setting, Workload
from replica.protocol.hashing import BLOCK_SIZE

_COARSE = 16
_DEFAULT_REQUESTS = 3000


class _Blocks:
    """Ids that nobody else has."""

    def __init__(self) -> None:
        self._next = count(1)

    def take(self, tokens: int) -> list[int]:
        """Of a piece of a prompt; one of no whole number of blocks must be a prompt's last."""
        return list(islice(self._next, -(-tokens // BLOCK_SIZE)))


def _poisson(randomness: random.Random, rate: float) -> Iterator[float]:
    now = 0.0
    while True:
        now += randomness.expovariate(rate)
        yield now


def _workload(name: str, setting: Setting, rows: list[Row], stride: int = _COARSE) -> Workload:
    return Workload(name, make_requests(rows, [-1] * len(rows), stride), stride)


def _asked(setting: Setting, default: int = _DEFAULT_REQUESTS) -> int:
    return default if setting.limit is None else setting.limit


def _prefixes(share: float) -> Callable[[Setting], Workload]:
    """llm-d's shape: 150 prefixes of 6,000 tokens with 5 questions of 1,200 each, 1,000 tokens out, asked over and
    over; as many prefixes as make all prompts together `share` of the fleet's KV."""

    def make(setting: Setting) -> Workload:
        randomness = random.Random(setting.seed)
        system, question = 6144 // _COARSE, 1200 // _COARSE
        group_tokens = (system + 5 * question) * _COARSE
        groups = max(1, round(share * setting.replicas * setting.kv_tokens / group_tokens))
        blocks = _Blocks()
        prompts = []
        for _ in range(groups):
            prefix = blocks.take(system)
            prompts += [prefix + blocks.take(question) for _ in range(5)]
        arrivals = _poisson(randomness, 1.5 * setting.replicas * setting.rate_scale)
        order: list[int] = []
        while len(order) < _asked(setting):
            order += randomness.sample(range(len(prompts)), len(prompts))
        rows = [
            Row(at, system + question, prompts[which], 1000)
            for at, which in zip(arrivals, order[: _asked(setting)], strict=False)
        ]
        return _workload(f"prefixes-{share * 100:.0f}", setting, rows)

    return make


def _giant(setting: Setting) -> Workload:
    """All share one system prompt of 32,768 tokens; 512 are each one's own."""
    randomness = random.Random(setting.seed)
    blocks = _Blocks()
    shared = blocks.take(32_768 // _COARSE)
    own = 512 // _COARSE
    arrivals = _poisson(randomness, 4.0 * setting.replicas * setting.rate_scale)
    rows = [
        Row(at, 32_768 // _COARSE + own, shared + blocks.take(own), 150) for at in islice(arrivals, _asked(setting))
    ]
    return _workload("giant", setting, rows)


def _bursts(setting: Setting) -> Workload:
    """64 equal requests of 4,096 tokens at once, each time another prompt."""
    randomness = random.Random(setting.seed)
    blocks = _Blocks()
    rows: list[Row] = []
    for at in _poisson(randomness, 0.04 * setting.replicas * setting.rate_scale):
        if len(rows) >= _asked(setting):
            break
        prompt = blocks.take(4096 // _COARSE)
        rows += [Row(at, 4096 // _COARSE, prompt, 150)] * 64
    return _workload("bursts", setting, rows[: _asked(setting)])


def _tenants(setting: Setting) -> Workload:
    """200 tenants, each with a system prompt of 2,048 tokens and 1,024 new ones a time, asking by Zipf's law (1.0); and
    one aggressor that asks as often as all of them together, with 8,192 tokens of its own each time."""
    randomness = random.Random(setting.seed)
    blocks = _Blocks()
    prompts = [blocks.take(2048 // _COARSE) for _ in range(200)]
    shares = list(accumulate(1 / rank for rank in range(1, 201)))
    rows: list[Row] = []
    for at in islice(_poisson(randomness, 3.0 * setting.replicas * setting.rate_scale), _asked(setting)):
        if randomness.random() < 0.5:
            tokens = 8192 // _COARSE
            rows.append(Row(at, tokens, blocks.take(tokens), 50, tenant=AGGRESSOR))
        else:
            tenant = bisect(shares, randomness.random() * shares[-1])
            own = 1024 // _COARSE
            rows.append(Row(at, 2048 // _COARSE + own, prompts[tenant] + blocks.take(own), 150, tenant=f"t{tenant}"))
    return _workload("tenants", setting, rows)


def _neighbours(factor: float) -> Callable[[Setting], Workload]:
    """200 tenants by Zipf's law that keep the fleet busy for 60 % of the time by themselves; and an aggressor that asks
    for `factor` times the uncached tokens of the biggest of them, 4,096 at a time. They come alike without it."""

    def make(setting: Setting) -> Workload:
        randomness, other = random.Random(setting.seed), random.Random(f"aggressor {setting.seed}")
        blocks = _Blocks()
        prompts = [blocks.take(2048 // _COARSE) for _ in range(200)]
        shares = list(accumulate(1 / rank for rank in range(1, 201)))
        own, his = 1024 // _COARSE, 4096 // _COARSE
        rate = 7.0 * setting.replicas * setting.rate_scale
        rows: list[Row] = []
        for at in islice(_poisson(randomness, rate), _asked(setting)):
            tenant = bisect(shares, randomness.random() * shares[-1])
            prompt = prompts[tenant] + blocks.take(own)
            rows.append(Row(at, 2048 // _COARSE + own, prompt, 30, tenant=f"t{tenant}"))
        if factor:
            his_rate = factor * rate / shares[-1] * own / his
            end = rows[-1].at_s
            for at in takewhile(lambda at: at < end, _poisson(other, his_rate)):
                rows.append(Row(at, his, blocks.take(his), 30, tenant=AGGRESSOR))
            rows.sort(key=lambda row: row.at_s)
        rows = rows[: _asked(setting)]
        return _workload("neighbours", setting, rows)

    return make


def _unique(setting: Setting) -> Workload:
    """Nothing is ever asked twice: the control where a cache-aware policy must cost nothing."""
    randomness = random.Random(setting.seed)
    blocks = _Blocks()
    rows: list[Row] = []
    for at in islice(_poisson(randomness, 2.0 * setting.replicas * setting.rate_scale), _asked(setting)):
        tokens = max(BLOCK_SIZE, int(randomness.lognormvariate(5.0, 0.8)))
        rows.append(Row(at, tokens, blocks.take(tokens), 200))
    return _workload("unique", setting, rows)


def _reasoning(setting: Setting) -> Workload:
    """llm-d's decode-bound control: 256 tokens shared, 1,024 own, 8,000 out."""
    randomness = random.Random(setting.seed)
    blocks = _Blocks()
    shared, own = blocks.take(256 // _COARSE), 1024 // _COARSE
    arrivals = _poisson(randomness, 0.15 * setting.replicas * setting.rate_scale)
    rows = [
        Row(at, 256 // _COARSE + own, shared + blocks.take(own), 8000) for at in islice(arrivals, _asked(setting, 600))
    ]
    return _workload("reasoning", setting, rows)


def _kind(make: Callable[[Setting], Workload], meaning: str) -> Kind:
    return Kind(make, meaning)


SHAPES: dict[str, Kind] = {
    "prefixes-73": _kind(_prefixes(0.73), "prefixes with 5 questions each, 73 % of the fleet's KV"),
    "prefixes-110": _kind(_prefixes(1.10), "the same with 110 %"),
    "prefixes-200": _kind(_prefixes(2.00), "the same with 200 %"),
    "giant": _kind(_giant, "one giant shared system prompt"),
    "bursts": _kind(_bursts, "64 equal requests at once"),
    "tenants": _kind(_tenants, "Zipf tenants and an aggressor"),
    "neighbours": _kind(_neighbours(0.0), "Zipf tenants alone, at 60 % of the fleet"),
    "neighbours-10": _kind(
        _neighbours(10 / 200 * sum(1 / rank for rank in range(1, 201))), "an aggressor at 10 x the mean share"
    ),
    "neighbours-59": _kind(_neighbours(10.0), "an aggressor at 10 x the biggest one's share, 59 x the mean"),
    "unique": _kind(_unique, "zero reuse"),
    "reasoning": _kind(_reasoning, "decode-bound"),
}
