from collections import Counter

import pytest

from loadtest.peers.loads import LOADS, SMALL_LOADS, Load
from replica.protocol.text import ModelText

SIZE = 0.2


def prompts(load: Load) -> list[str]:
    return [conversation.system + "\n" + conversation.user for conversation in load.conversations]


@pytest.mark.parametrize("name", LOADS)
def test_a_seed_gives_the_same_text_and_another_seed_other_text(tiny_text: ModelText, name: str) -> None:
    load, again, other = (LOADS[name](tiny_text, seed, SIZE) for seed in (1, 1, 2))
    assert load == again and load.name == name
    assert not set(prompts(load)) & set(prompts(other))


@pytest.mark.parametrize("build", [*LOADS.values(), *SMALL_LOADS.values()])
def test_a_size_is_a_share_of_the_requests(tiny_text: ModelText, build: object) -> None:
    assert callable(build)
    small, full = build(tiny_text, 1, SIZE), build(tiny_text, 1, 1.0)
    assert 0.1 < small.requests / full.requests < 0.35 or full.requests < 50
    assert full.requests <= 400 and full.requests / full.rate_per_s < 60


def test_five_queries_share_each_context(tiny_text: ModelText) -> None:
    load = LOADS["prefixes"](tiny_text, 1, SIZE)
    assert set(Counter(conversation.system for conversation in load.conversations).values()) == {5}
    assert len({conversation.user for conversation in load.conversations}) == load.requests


def test_sessions_share_nothing_and_grow(tiny_text: ModelText) -> None:
    load = LOADS["sessions"](tiny_text, 1, SIZE)
    assert len({conversation.system for conversation in load.conversations}) == len(load.conversations)
    assert all(4 <= conversation.turns <= 7 for conversation in load.conversations)


def test_all_share_the_giant_prompt(tiny_text: ModelText) -> None:
    load = LOADS["giant"](tiny_text, 1, SIZE)
    assert len({conversation.system for conversation in load.conversations}) == 1
    assert len(load.conversations[0].system.split()) == 6000


def test_without_reuse_prompts_part_at_once(tiny_text: ModelText) -> None:
    load = LOADS["no_reuse"](tiny_text, 1, 1.0)
    assert not load.has_reuse
    assert len({" ".join(prompt.split()[:16]) for prompt in prompts(load)}) == load.requests
