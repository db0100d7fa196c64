import random

import numpy as np
import pytest

from replica.attention.batch import AttentionBatch
from replica.device.memory import widest_plan
from replica.device.plan import in_order, plan, sampled_of
from replica.sampler import uniform
from replica.sequence import Chunk, SamplingParams, Sequence


def sequence(length: int, pages: list[int], **params: object) -> Sequence:
    settings = SamplingParams(**({"max_tokens": 9, "temperature": 0.0} | params))  # type: ignore[arg-type]
    made = Sequence(f"s{pages[0]}", [index % 290 + 1 for index in range(length)], settings, namespace=0)
    made.pages = pages
    return made


def test_rows_are_those_of_the_cpu_s_batch() -> None:
    rng = random.Random(3)
    chunks = []
    for index in range(20):
        length = rng.randrange(1, 100)
        start = rng.choice([length - 1, rng.randrange(length)])
        pages = rng.sample(range(1000), -(-length // 16))
        chunks.append(Chunk(sequence(length, pages), start, rng.randrange(1, length - start + 1)))
        assert index < 20
    ordered = in_order(chunks)
    made, expected = plan(ordered, {}), AttentionBatch.build(ordered)
    assert [chunk.count == 1 for chunk in ordered] == [True] * made.num_decodes + [False] * (20 - made.num_decodes)
    assert 0 < made.num_decodes < 20
    np.testing.assert_array_equal(made.positions, expected.positions)
    np.testing.assert_array_equal(made.slots, expected.slots)
    np.testing.assert_array_equal(made.page_table, expected.page_table)
    np.testing.assert_array_equal(made.tokens, made.positions + 1)
    np.testing.assert_array_equal(made.lens, [chunk.end for chunk in ordered])
    np.testing.assert_array_equal(np.diff(made.query_start), [chunk.count for chunk in ordered if chunk.count > 1])
    ends = np.cumsum([chunk.count for chunk in ordered])
    np.testing.assert_array_equal(
        made.rows, [end - 1 for end, chunk in zip(ends, ordered, strict=True) if chunk.samples]
    )
    assert made.draws is None


def test_a_token_still_on_the_device_is_taken_from_where_it_was_sampled() -> None:
    known, waited = sequence(5, [1]), sequence(20, [2, 3])
    waited.expect()
    made = plan([Chunk(known, 4, 1), Chunk(waited, 20, 1)], {waited: 7, known: 3})
    assert made.take.tolist() == [-1, 7]
    assert made.tokens.tolist() == [5, 0]
    assert made.positions.tolist() == [4, 20]


def test_a_chunk_short_of_the_end_takes_nothing() -> None:
    waited = sequence(20, [2, 3])
    waited.expect()
    made = plan([Chunk(waited, 0, 20)], {})
    assert (made.take == -1).all() and not len(made.rows)
    with pytest.raises(KeyError):
        plan([Chunk(waited, 0, 21)], {})


def test_draws_are_those_of_the_sampler() -> None:
    one, other = sequence(5, [1], temperature=0.5, seed=11, top_k=3), sequence(6, [2], top_p=0.5, min_p=0.25)
    made = plan([Chunk(one, 4, 1), Chunk(other, 5, 1)], {})
    assert made.draws is not None
    assert made.draws.temperature.tolist() == [0.5, 0.0]
    assert made.draws.top_k.tolist() == [3, 0]
    assert made.draws.top_p.tolist() == [1.0, 0.5]
    assert made.draws.min_p.tolist() == [0.0, 0.25]
    assert made.draws.points.tolist() == [uniform(11, 5), uniform(0, 6)]


def test_rows_that_the_host_samples() -> None:
    plain, biased = sequence(5, [1]), sequence(6, [2], logit_bias=((3, 1.0),))
    unfinished = sequence(40, [3, 4, 5], logit_bias=((3, 1.0),))
    chunks = [Chunk(plain, 4, 1), Chunk(biased, 5, 1), Chunk(unfinished, 0, 16)]
    assert plan(chunks, {}).on_host.tolist() == [1]
    assert sampled_of(chunks) == [plain, biased]


def test_neighbours_with_common_pages_are_grouped_where_it_pays() -> None:
    shared = list(range(100, 120))
    alike = [sequence(400, [*shared, *range(1000 + 10 * n, 1005 + 10 * n)]) for n in range(20)]
    others = [sequence(30, [n, 50 + n]) for n in range(3)]
    chunks = in_order([Chunk(one, len(one.tokens) - 1, 1) for one in (*alike, *others)])
    made = plan(chunks, {})
    assert made.group_start.tolist() == [0, 3, 23]
    assert made.group_pages.tolist() == [0, 20]
    assert not len(plan(chunks, {}, cascade=False).group_pages)
    assert not len(plan(in_order([Chunk(one, len(one.tokens) - 1, 1) for one in alike[:3]]), {}).group_pages)


def test_a_page_that_is_still_being_filled_is_never_a_common_one() -> None:
    """Sequences of made-up pages that are equal up to the end: the last one isn't full."""
    alike = [sequence(399, list(range(25))) for _ in range(20)]
    made = plan([Chunk(one, 398, 1) for one in alike], {})
    assert made.group_pages.tolist() == [24]


def test_the_widest_step_fits_the_context() -> None:
    made = widest_plan(tokens=1000, sampled=64, max_context=300)
    assert made.lens.tolist() == [300, 300, 300, 100]
    assert made.positions.max() == 299 and len(made.positions) == 1000
    assert made.query_start.tolist() == [0, 300, 600, 900, 1000]
    assert made.page_table.shape == (4, 19)
    assert made.rows.tolist() == list(range(936, 1000))
