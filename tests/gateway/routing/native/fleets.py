"""Fleets at random, with the odd ones among them, once for native code and once for numpy."""

from dataclasses import replace
from random import Random

from gateway.routing.base import RouteRequest
from gateway.routing.candidates import Candidates
from replica.protocol.records import CostModel
from tests.gateway.fakes import COST, blocks
from tests.gateway.routing.views import View, candidates

PATH = blocks(1, 640)


def random_request(rng: Random) -> RouteRequest:
    tokens = rng.choice((1, 16, 17, rng.randrange(1, 1025), rng.randrange(1, 10_241)))
    return RouteRequest(tokens, PATH[: tokens // 16])


def random_fleet(rng: Random, request: RouteRequest) -> list[View]:
    """Often with equals, with idle replicas and with ones that say little of themselves."""
    count = rng.choice((1, 1, 2, 3, rng.randrange(1, 40)))
    views = [_random_view(rng, f"r{number}", len(request.hashes)) for number in range(count)]
    if rng.random() < 0.4:
        views = [replace(rng.choice(views[:2]), id=view.id) for view in views]
    return views


def _random_view(rng: Random, name: str, blocks_of_the_prompt: int) -> View:
    matched = rng.choice((0, 0, rng.randrange(blocks_of_the_prompt + 1), blocks_of_the_prompt))
    total = rng.choice((0, 1000))
    queued = tuple(rng.randrange(1, 1 << rng.randrange(1, 19)) for _ in range(rng.choice((0, 0, 3))))
    return View(
        name,
        queue_tokens=rng.choice((0, rng.randrange(20_000))),
        queued=queued,
        shortest_first=rng.random() < 0.7,
        max_running=rng.choice((0, 4, 64)),
        stay_s=rng.choice((0.0, rng.random())),
        waiting=rng.randrange(10),
        decoding=rng.choice((0, rng.randrange(80))),
        active_blocks=rng.randrange(total + 1),
        free_blocks=rng.randrange(total + 1),
        total_blocks=total,
        trust=rng.choice((0.0, 1.0, rng.random())),
        unpromised=rng.choice((0.0, rng.random())),
        reuse_tokens=rng.choice((0, 16, 64)),
        reuse=rng.random(),
        cost=rng.choice((COST, _random_cost(rng))),
        matched_blocks=matched,
        held_blocks=rng.choice((matched, rng.randrange(matched + 1))),
    )


def _random_cost(rng: Random) -> CostModel:
    c0, c_lin, c_att, c_dec = (rng.choice((0.0, rng.random())) * most for most in (0.05, 1e-3, 1e-7, 1e-3))
    return CostModel(c0 or 1e-4, c_lin or 1e-5, c_att, c_dec, rng.choice((64, 512, 8192)))


def both(views: list[View]) -> tuple[Candidates, Candidates]:
    return candidates(*views), candidates(*views, native=False)
