"""transformers in fp32, as quick as it goes: SDPA, a KV cache, logits of the last position only."""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from loadtest.engine_bench.contenders.serving import Operation, clock, serve


class Transformers:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")

    def operations(self) -> dict[str, Operation]:
        return {"prefill": self.prefill, "decode": self.decode}

    @torch.inference_mode()
    def prefill(self, prompts: list[list[int]]) -> dict[str, Any]:
        seconds = []
        for prompt in prompts:
            started = clock()
            self._next(torch.tensor([prompt]), self._new_cache()).tolist()
            seconds.append(clock() - started)
        return {"seconds": seconds}

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, Any]:
        """Prompts of one length."""
        cache = self._new_cache()
        tokens = self._next(torch.tensor(prompts), cache)
        started = clock()
        for _ in range(steps):
            tokens = self._next(tokens[:, None], cache)
        seconds = clock() - started
        return {"tokens_per_s": len(prompts) * steps / seconds}

    def _new_cache(self) -> Any:
        return DynamicCache(config=self._model.config)

    def _next(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        logits = self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        chosen: torch.Tensor = logits[:, -1].argmax(-1)
        return chosen


if __name__ == "__main__":
    serve(lambda: Transformers(Path(sys.argv[1])).operations(), "transformers")
