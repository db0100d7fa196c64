"""llama.cpp on its own quantised weights, through the package xllamacpp. Argument: a GGUF file."""

import sys
import time
from pathlib import Path
from typing import Any

from loadtest.engine_bench.contenders.serving import Operation, clock, serve

_CONTEXT = 4096


class LlamaServer:
    """The times are those that llama.cpp's server measures itself, without HTTP or tokenising."""

    def __init__(self, gguf: Path) -> None:
        from xllamacpp import CommonParams, Server

        params = CommonParams()
        params.model.path = str(gguf)
        params.n_ctx = _CONTEXT
        params.n_parallel = 1
        params.cpuparams.n_threads = 1
        params.cpuparams_batch.n_threads = 1
        self._server: Any = Server(params)

    def operations(self) -> dict[str, Operation]:
        return {"prefill": self.prefill, "decode": self.decode}

    def prefill(self, prompts: list[list[int]]) -> dict[str, Any]:
        return {"seconds": [self._timings(prompt, 1)["prompt_ms"] / 1e3 for prompt in prompts]}

    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, Any]:
        """One prompt."""
        (prompt,) = prompts
        timings = self._timings(prompt, steps + 1)
        # It counts the first token, whose time is the prompt's.
        return {"tokens_per_s": (timings["predicted_n"] - 1) / (timings["predicted_ms"] / 1e3)}

    def _timings(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        request = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        started, started_wall = clock(), time.perf_counter()
        timings: dict[str, Any] = self._server.handle_completions(request)["timings"]
        # Its own times are those that passed: brought to the bench's clock.
        share = (clock() - started) / (time.perf_counter() - started_wall)
        return timings | {name: share * timings[name] for name in ("prompt_ms", "predicted_ms")}


if __name__ == "__main__":
    serve(lambda: LlamaServer(Path(sys.argv[1])).operations(), "xllamacpp")
