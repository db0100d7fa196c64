"""How ranks put together the outputs of a linear map that they share, and which models they can share at all.

As in Megatron-LM (Shoeybi et al. 2019) the first map of a pair is split by its outputs (q, k and v by heads; gate and
up), the second by its inputs, so that each pair needs one all-reduce. The head is split by tokens of the vocabulary and
its logits are gathered by all: the same bits everywhere, so every rank samples the same tokens, and none waits for
another to say which. Embeddings are held by each rank: splitting them would cost a further all-reduce at the start of
each step, of which a decode, bound by latency, has enough.
"""

from collections.abc import Mapping

import torch

from replica.config import ConfigError
from replica.device.parallel.collective import Collective
from replica.model.decoder import DecoderConfig
from replica.model.weights import Split


class Combiner:
    """A `replica.device.weights.Combine`."""

    def __init__(self, ranks: Collective, vocabulary: int) -> None:
        self._ranks = ranks
        self._vocabulary = vocabulary

    def __call__(self, split: Split, outputs: torch.Tensor) -> torch.Tensor:
        if split is Split.COLUMNS:
            return self._ranks.all_reduce(outputs)
        assert split is Split.VOCABULARY
        gathered = self._ranks.all_gather(outputs)
        # Where it doesn't divide, the last ranks' rows are padded.
        return gathered if gathered.shape[1] == self._vocabulary else gathered[:, : self._vocabulary].contiguous()


def check_divides(size: int, config: DecoderConfig, ffn: int) -> None:
    """`ffn`: hidden units of an MLP. Raises ConfigError, which names both numbers."""
    counts: Mapping[str, int] = {
        "heads": config.num_heads,
        "heads of K and V": config.model.num_kv_heads,
        "units of an MLP": ffn,
    }
    for what, count in counts.items():
        if count % size:
            heads = config.model.num_kv_heads
            possible = [str(n) for n in range(1, heads + 1) if all(count % n == 0 for count in counts.values())]
            raise ConfigError(
                f"tensor_parallel: {size} ranks can't share the model's {count} {what}; "
                f"what divides: {', '.join(possible)}"
            )
