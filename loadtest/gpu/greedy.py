"""Greedy answers of the real model beside transformers' own: at each token, how much less likely ours is to it than its
own choice. In bf16 two implementations part where two tokens are next to equally likely, and there only."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from loadtest.gpu.bench import Bench
from loadtest.gpu.steps import kv_dtype, pages_of, runner_of, sequences, zeroed_pool
from replica.device.load import load_device_model
from replica.device.plan import in_order, plan, sampled_of
from replica.device.runner import DeviceRunner
from replica.protocol.text import ModelText
from replica.sequence import Chunk, Sequence

_PROMPTS = (
    "Which hotels in Lisbon have step-free access to every floor?",
    "Write three sentences about a quiet garden in the rain.",
    "What is the capital of France?",
    "List five things to pack for a week in the mountains.",
    "Explain to a child why the sky is blue.",
    "def fibonacci(n):",
    "Translate to German: The room on the ground floor has a wide door.",
    "1, 1, 2, 3, 5, 8,",
)
_NATS = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""By how much the logprob of our token may be below the best, by the other's reckoning."""


def check_greedy(bench: Bench) -> None:
    steps = 8 if bench.small else 64
    text = ModelText.load(bench.folder)
    chat = [text.encode_chat(text.render([{"role": "user", "content": prompt}])) for prompt in _PROMPTS]
    prompts = [list(ids) for ids in chat[: 2 if bench.small else None]]
    answers = _our_answers(bench, prompts, steps)
    model = _theirs(bench)
    worst, equal, total = 0.0, 0, 0
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        logprobs = _their_logprobs(model, [*prompt, *answer], len(prompt), bench.device)
        chosen = logprobs.gather(1, torch.tensor(answer, device=logprobs.device)[:, None])[:, 0]
        behind = logprobs.amax(-1) - chosen
        most = float(behind.max())
        first = next(iter((behind > 0).nonzero()[:, 0].tolist()), None)
        where = "all tokens are its own" if first is None else f"first differs at {first}: {float(behind[first]):.3f}"
        bench.record.check(f"greedy prompt {index}", most <= _NATS[bench.dtype], f"{where}; worst {most:.3f} nats")
        worst, equal, total = max(worst, most), equal + int((behind == 0).sum()), total + len(answer)
    bench.record.figure("greedy_worst_nats", worst)
    bench.record.figure("greedy_equal_share", equal / total)


def _our_answers(bench: Bench, prompts: list[list[int]], steps: int) -> list[list[int]]:
    """All in one batch, the prompts' chunks of one step and then decodes, as the engine would."""
    config, model = load_device_model(bench.folder, bench.device, bench.dtype)
    made = sequences([len(prompt) + steps for prompt in prompts], config.vocab_size)
    running = [Sequence(one.id, prompt, one.params, 0) for one, prompt in zip(made, prompts, strict=True)]
    for sequence, pages in zip(running, (one.pages for one in made), strict=True):
        sequence.pages = pages
    most = max(len(sequence.pages) for sequence in running)
    num_pages = sum(pages_of(len(prompt) + steps) for prompt in prompts)
    pool = zeroed_pool(config, num_pages, kv_dtype(bench.dtype), bench.device)
    runner = runner_of(bench, model, pool, len(running), most, graphs=True)
    for step in range(steps):
        _step(runner, running, whole=step == 0)
    return [sequence.tokens[len(sequence.prompt) :] for sequence in running]


def _step(runner: DeviceRunner, running: list[Sequence], whole: bool) -> None:
    ends = [len(sequence.tokens) for sequence in running]
    chunks = in_order(
        [
            Chunk(sequence, 0, end) if whole else Chunk(sequence, end - 1, 1)
            for sequence, end in zip(running, ends, strict=True)
        ]
    )
    tokens = runner.run(plan(chunks, {}, False)).tokens.tolist()
    for sequence, token in zip(sampled_of(chunks), tokens, strict=True):
        sequence.append(token)


def _theirs(bench: Bench) -> Any:
    # Takes seconds to import.
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(bench.folder, dtype=bench.dtype, attn_implementation="eager")
    return model.to(bench.device).eval()


@torch.inference_mode()
def _their_logprobs(model: Any, ids: list[int], first: int, device: torch.device) -> Tensor:
    """Of what may follow each of the tokens from `first - 1` on, but for the last: [answer, vocabulary], fp32."""
    output: Mapping[str, Tensor] = model(torch.tensor([ids], device=device))
    return output["logits"][0, first - 1 : -1].float().log_softmax(-1)
