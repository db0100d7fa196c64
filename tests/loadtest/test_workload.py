from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from loadtest.workload import (
    Conversation,
    SentRequest,
    Workload,
    WorkloadError,
    cached_limit,
    prompt_ids,
    sent_request,
    travel_workload,
)
from replica.protocol.text import ModelText


@pytest.fixture(scope="module")
def workload(tiny_text: ModelText) -> Workload:
    return travel_workload(tiny_text, 1)


def test_counts_are_exact(any_text: ModelText) -> None:
    workload = travel_workload(any_text, 2)
    assert len(workload.conversations) == 50 and workload.requests == 100
    for conversation in (*workload.conversations, workload.traced):
        assert len(prompt_ids(any_text, conversation.messages())) == 1025
        assert len(any_text.encode_chat(conversation.system)) == 200
        questions = [conversation.user.split("\n\n")[1], *conversation.follow_ups]
        assert [len(any_text.encode_chat(question)) for question in questions] == [25, 25]


def test_other_sizes_are_exact_too(any_text: ModelText) -> None:
    workload = travel_workload(
        any_text, 5, agents=3, cities=2, turns=3, system_tokens=60, prompt_tokens=300, question_tokens=30
    )
    for conversation in workload.conversations:
        assert len(prompt_ids(any_text, conversation.messages())) == 300
        assert len(any_text.encode_chat(conversation.system)) == 60
        assert [len(any_text.encode_chat(question)) for question in conversation.follow_ups] == [30, 30]


def test_a_seed_gives_the_same_text_and_another_gives_another(tiny_text: ModelText) -> None:
    first, same, other = (travel_workload(tiny_text, seed, agents=4, cities=2) for seed in (7, 7, 8))
    assert first == same
    assert first.conversations[0].user != other.conversations[0].user


def test_agents_share_the_system_prompt_and_their_citys_notes_only(workload: Workload) -> None:
    conversations = workload.conversations
    assert len({c.system for c in conversations}) == 1
    notes_of = {(c.city, c.user.split("\n\n")[0]) for c in conversations}
    assert len(notes_of) == 10
    questions = [c.user.split("\n\n")[1] for c in conversations] + [q for c in conversations for q in c.follow_ups]
    assert len(set(questions)) == len(questions)
    assert set(Counter(c.city for c in conversations).values()) == {5}


def test_no_question_is_asked_twice(tiny_text: ModelText) -> None:
    """Many agents on one city: questions of one length would collide by chance."""
    conversations = travel_workload(tiny_text, 1, agents=150, cities=1, turns=3).conversations
    follow_ups = [question for c in conversations for question in c.follow_ups]
    assert len({c.user for c in conversations}) == 150 and len(set(follow_ups)) == 300


def test_cities_dont_alternate_with_agents(workload: Workload) -> None:
    """Otherwise round robin over 2 or 5 replicas would give each replica its own cities."""
    cities = [c.city for c in workload.conversations]
    for replicas in (2, 5):
        first = {city for agent, city in enumerate(cities) if agent % replicas == 0}
        assert len(first) > 10 // replicas


def test_the_traced_agent_asks_something_new_about_a_known_city(workload: Workload) -> None:
    same_city = [c for c in workload.conversations if c.city == workload.traced.city]
    assert {c.user.split("\n\n")[0] for c in same_city} == {workload.traced.user.split("\n\n")[0]}
    assert workload.traced.user not in {c.user for c in same_city}


def test_a_later_turn_repeats_all_that_went_before() -> None:
    conversation = Conversation(0, "Lisbon", "rules", "notes", ("second", "third"))
    first, third = conversation.messages(), conversation.messages(["one", "two"])
    assert third[: len(first)] == first
    assert [m["role"] for m in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in third[2:]] == ["one", "second", "two", "third"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"cities": 0}, "cities"),
        ({"cities": 25}, "cities"),
        ({"agents": 0}, "agents"),
        ({"turns": 0}, "turns"),
        ({"question_tokens": 2}, "question"),
        ({"system_tokens": 1}, "system prompt"),
        ({"prompt_tokens": 100}, "prompt about"),
    ],
)
def test_sizes_that_cant_be_met_are_named(tiny_text: ModelText, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        travel_workload(tiny_text, 1, **sizes)


def naive_limit(requests: list[SentRequest]) -> int:
    """Every prefix of whole blocks that was ever held, as a set of tuples."""
    held: set[tuple[int, ...]] = set()
    limit = 0
    for request in requests:
        lengths = range(16, len(request.prompt), 16)
        if request.counted:
            limit += max((n for n in lengths if tuple(request.prompt[:n]) in held), default=0)
        for tokens in (request.prompt, request.with_answer):
            held |= {tuple(tokens[:n]) for n in range(16, len(tokens) + 1, 16)}
    return limit


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_equals_a_naive_count(seed: int) -> None:
    print(f"seed {seed}")
    rng = Random(seed)
    history: list[list[int]] = [[]]
    requests = []
    for _ in range(40):
        base = rng.choice(history)
        prompt = base[: rng.randint(0, len(base))] + [rng.randint(0, 2) for _ in range(rng.randint(1, 40))]
        answer = [rng.randint(0, 2) for _ in range(rng.randint(0, 40))]
        requests.append(SentRequest(prompt, prompt + answer, counted=rng.random() < 0.9))
        history += [prompt, prompt + answer]
    assert cached_limit(requests) == naive_limit(requests) > 0


def test_a_whole_prompt_is_never_all_from_cache() -> None:
    request = SentRequest(list(range(32)), list(range(32)))
    assert cached_limit([request, request]) == 16
    assert cached_limit([request, replace(request, prompt=list(range(33)))]) == 32


def test_a_second_turn_finds_the_first_ones_answer(any_text: ModelText) -> None:
    conversation = travel_workload(any_text, 1, agents=1, cities=1).conversations[0]
    answer = "The second house has a roll-in shower. " * 20
    first = sent_request(any_text, conversation.messages(), answer)
    second = sent_request(any_text, conversation.messages([answer]), "ok")
    assert cached_limit([first, second]) == (len(first.with_answer) // 16) * 16 > 1024
