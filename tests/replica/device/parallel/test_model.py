"""A model that ranks share gives what one rank gives, on real gloo."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import kernels.device
from replica.config import ConfigError
from replica.device.load import alone, load_device_model
from replica.device.parallel.collective import Collective
from replica.device.parallel.combine import Combiner, check_divides
from replica.device.plan import in_order, plan, sampled_of
from replica.device.pool import DevicePool
from replica.device.runner import DeviceRunner
from replica.device.weights import DeviceWeights, Shard
from replica.model.config import ConfigFields
from replica.model.decoder import DecoderConfig
from replica.model.llama import LLAMA
from replica.model.weights import Split, WeightFiles
from replica.sequence import Chunk, SamplingParams, Sequence
from tests.replica.device.parallel.shared_model import FFN, HEADS, VOCABULARY, write_shared_model
from tests.replica.device.parallel.threads import Ranks, ranks_of

CPU = torch.device("cpu")
STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernels.device.use("torch")
    path: Path = tmp_path_factory.mktemp("shared")
    write_shared_model(path)
    return path


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with ranks_of(request.param) as made:
        yield made


def runner_of(folder: Path, ranks: Collective | None) -> DeviceRunner:
    if ranks is None:
        config, model = load_device_model(folder, CPU, torch.float32)
    else:
        config, model = load_device_model(folder, CPU, torch.float32, ranks.shard, Combiner(ranks, VOCABULARY))
    return DeviceRunner(model, DevicePool.allocate(config, 32, "fp32", CPU), CPU, max_running=8, max_pages=32)


def drive(runner: DeviceRunner) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Three answers, of which one is drawn and one's tokens stay on the device for a step; and the logits of the third,
    which go to the host."""
    params = [
        SamplingParams(STEPS, temperature=0),
        SamplingParams(STEPS, temperature=0.8, top_p=0.9, seed=3),
        SamplingParams(STEPS, temperature=0, logprobs=0),
    ]
    sequences = [
        Sequence(f"s{index}", [(7 * index + 3 * n) % VOCABULARY for n in range(length)], one, 0)
        for index, (length, one) in enumerate(zip((20, 7, 33), params, strict=True))
    ]
    for index, sequence in enumerate(sequences):
        sequence.pages = list(range(index * 8, index * 8 + 8))
    late = sequences[0]
    previous: dict[Sequence, int] = {}
    known: dict[Sequence, int] = {}
    logits: list[torch.Tensor] = []
    for step in range(STEPS):
        starts = [0 if step == 0 else len(sequence.tokens) - 1 for sequence in sequences]
        chunks = [Chunk(s, start, len(s.tokens) - start) for s, start in zip(sequences, starts, strict=True)]
        ordered = in_order(chunks)
        ran = runner.run(plan(ordered, previous))
        if late.num_pending:
            late.withdraw()
            late.append(known[late])
        previous = {sequence: row for row, sequence in enumerate(sampled_of(ordered))}
        known = {sequence: int(ran.tokens[row]) for sequence, row in previous.items()}
        late.expect()
        for sequence in sequences[1:]:
            sequence.append(known[sequence])
        assert ran.logits is not None
        logits.append(ran.logits)
    late.withdraw()
    late.append(known[late])
    return [sequence.tokens for sequence in sequences], logits


def test_tokens_and_logits_are_those_of_one_rank(folder: Path, ranks: Ranks) -> None:
    tokens, logits = drive(runner_of(folder, None))
    assert len({token for answer in tokens for token in answer[-STEPS:]}) > STEPS / 2
    for shared_tokens, shared_logits in ranks.run(lambda c: drive(runner_of(folder, c))):
        assert shared_tokens == tokens
        torch.testing.assert_close(torch.cat(shared_logits), torch.cat(logits), rtol=0, atol=1e-4)


def test_all_ranks_have_the_same_logits_to_the_bit(folder: Path, ranks: Ranks) -> None:
    first, *others = [torch.cat(logits) for _, logits in ranks.run(lambda c: drive(runner_of(folder, c)))]
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("name", "split", "dim"),
    [
        ("model.layers.0.self_attn.k_proj.weight", Split.ROWS, 0),
        ("model.layers.1.mlp.gate_proj.bias", Split.ROWS, 0),
        ("model.layers.1.mlp.down_proj.weight", Split.COLUMNS, 1),
        ("lm_head.weight", Split.VOCABULARY, 0),
    ],
)
@pytest.mark.parametrize("size", [2, 3, 6])
def test_parts_of_all_ranks_are_the_whole(folder: Path, name: str, split: Split, dim: int, size: int) -> None:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        whole = file.get_tensor(name)
    parts = []
    for rank in range(size):
        with DeviceWeights(WeightFiles(folder), CPU, torch.float32, Shard(rank, size), alone) as weights:
            parts.append(weights.load(name, split))
    assert len({part.shape for part in parts}) == 1
    joined = torch.cat(parts, dim)
    own = whole.shape[dim]
    assert joined.shape[dim] == own + -own % size
    assert torch.equal(joined.narrow(dim, 0, own), whole)
    assert not joined.narrow(dim, own, -own % size).any()


def test_heads_that_do_not_divide_are_named(folder: Path) -> None:
    fields = ConfigFields.load(folder).with_defaults(LLAMA.defaults)
    config = DecoderConfig.read(fields, LLAMA)
    for size in (1, 2, 3, 6):
        check_divides(size, config, FFN)
    with pytest.raises(
        ConfigError, match=f"tensor_parallel: 5 ranks can't share the model's {HEADS} heads; .* 1, 2, 3, 6"
    ):
        check_divides(5, config, FFN)
    with pytest.raises(ConfigError, match="4 ranks can't share the model's 6 heads of K and V"):
        check_divides(4, config, FFN)
    with pytest.raises(ConfigError, match="3 ranks can't share the model's 70 units of an MLP; what divides: 1, 2"):
        check_divides(3, config, 70)
