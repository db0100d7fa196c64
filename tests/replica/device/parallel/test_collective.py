from collections.abc import Iterator

import pytest
import torch

from replica.device.parallel.collective import Collective
from replica.device.parallel.combine import Combiner
from replica.model.weights import Split
from tests.replica.device.parallel.threads import Ranks, ranks_of


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with ranks_of(request.param) as made:
        yield made


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_sum_is_in_place_and_the_same_bits_everywhere(ranks: Ranks, dtype: torch.dtype) -> None:
    parts = [random(7, 5, seed=rank).to(dtype) for rank in range(ranks.size)]
    expected = torch.stack(parts).float().sum(0)

    def work(collective: Collective) -> torch.Tensor:
        mine = parts[collective.shard.rank].clone()
        assert collective.all_reduce(mine).data_ptr() == mine.data_ptr()
        return mine

    sums = ranks.run(work)
    assert all(torch.equal(one, sums[0]) for one in sums)
    torch.testing.assert_close(sums[0].float(), expected, rtol=2e-2, atol=2e-2)


def test_gathered_columns_stand_in_the_order_of_ranks(ranks: Ranks) -> None:
    whole = random(3, 4 * ranks.size)
    for gathered in ranks.run(lambda c: c.all_gather(whole.chunk(ranks.size, dim=1)[c.shard.rank])):
        assert torch.equal(gathered, whole)


def test_no_rows_are_gathered_too(ranks: Ranks) -> None:
    assert all(one.shape == (0, 4 * ranks.size) for one in ranks.run(lambda c: c.all_gather(torch.zeros(0, 4))))


def test_the_least_of_all(ranks: Ranks) -> None:
    assert ranks.run(lambda c: c.least(10 - c.shard.rank)) == [11 - ranks.size] * ranks.size


def test_logits_lose_their_padding(ranks: Ranks) -> None:
    vocabulary = 4 * ranks.size - 1
    whole = random(3, vocabulary)
    padded = torch.cat([whole, torch.zeros(3, 1)], dim=1).chunk(ranks.size, dim=1)
    for logits in ranks.run(lambda c: Combiner(c, vocabulary)(Split.VOCABULARY, padded[c.shard.rank])):
        assert torch.equal(logits, whole) and logits.is_contiguous()
