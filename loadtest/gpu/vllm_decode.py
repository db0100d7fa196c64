"""vLLM's decode step at a shape of random weights. Run by vLLM's own Python, as a file: imports nothing of ours.

Prints one line of JSON: seconds a step at each batch size."""

import json
import os
import sys
import time
from typing import Any

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_ENDLESS = 2_000


def main(folder: str, context: int, steps: int, batches: list[int]) -> None:
    os.environ.update(_ENVIRONMENT)
    # Reads the environment when imported.
    from vllm import LLM, SamplingParams

    engine: Any = LLM(
        model=folder,
        dtype="bfloat16",
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=context + _ENDLESS,
        max_num_seqs=max(batches),
        enable_prefix_caching=False,
        gpu_memory_utilization=0.85,
    ).llm_engine
    params = SamplingParams(temperature=0, max_tokens=_ENDLESS, ignore_eos=True, detokenize=False)
    print(json.dumps({str(batch): _seconds(engine, params, batch, context, steps) for batch in batches}))


def _seconds(engine: Any, params: Any, batch: int, context: int, steps: int) -> float:
    """Of steps after all sequences have a token."""
    names = [f"{batch}-{index}" for index in range(batch)]
    for index, name in enumerate(names):
        prompt = [(index * 7919 + place * 31) % 32000 for place in range(context)]
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    given: dict[str, int] = {}
    while len(given) < batch:
        given |= _step(engine)
    before, started = sum(given.values()), time.perf_counter()
    for _ in range(steps):
        given |= _step(engine)
    seconds = time.perf_counter() - started
    done = sum(given.values()) - before
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return seconds / done * batch


def _step(engine: Any) -> dict[str, int]:
    return {output.request_id: len(output.outputs[0].token_ids) for output in engine.step()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(batch) for batch in sys.argv[4:]])
