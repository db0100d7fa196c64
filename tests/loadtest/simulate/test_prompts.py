"""What prompts are made of."""

from array import array

from loadtest.simulate.prompts import FILLER, NAMESPACE, Row, later_extensions, make_requests
from replica.protocol.hashing import block_hashes


def test_hashes_are_those_of_the_tokens() -> None:
    first, second = make_requests([Row(0, 37, [1, 2, 3], 5), Row(0, 48, [1, 2, 4], 5)], [-1, -1])
    for request in (first, second):
        assert request.hashes == block_hashes(array("I", request.packed()), NAMESPACE)
    assert first.hashes == second.hashes[:2]
    assert list(array("I", first.packed())) == [1] * 16 + [2] * 16 + [3] * 5


def test_an_answer_says_what_the_next_prompt_has_in_its_place() -> None:
    rows = [Row(0, 20, [1, 2], 30), Row(1, 60, [1, 5, 6, 7], 4, after=0)]
    first, second = make_requests(rows, [1, -1])
    prompt, answer = array("I", first.packed()), first.answer(20, 30)
    assert [*prompt, *answer] == list(array("I", second.packed()))[:50]
    assert first.whole_blocks == 3
    assert second.answer(60, 4) == [7] * 4
    assert set(second.answer(64, 4)) == {FILLER + 1}


def test_rows_without_sessions_are_followed_by_the_next_that_has_their_own_last_block() -> None:
    rows = [Row(0, 32, [1, 2], 9), Row(1, 16, [1], 9), Row(2, 64, [1, 2, 3, 4], 9), Row(3, 70, [1, 2, 3, 4, 5], 9)]
    assert later_extensions(rows) == [2, -1, 3, -1]


def test_one_token_may_stand_for_many() -> None:
    first, _ = make_requests([Row(0, 20, [1, 2], 64), Row(1, 60, [1, 5, 6, 7], 4)], [1, -1], stride=32)
    assert list(first.ids) == [1, 5]
    assert first.without_answer().whole_blocks == 1
