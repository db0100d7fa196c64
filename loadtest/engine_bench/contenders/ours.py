"""Our own engine, in one process and without HTTP. Arguments: the model's folder, and the name of the settings."""

import asyncio
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from loadtest.engine_bench.contenders.serving import Operation, clock, serve
from replica.answer.text import AnswerText
from replica.build import build_engine
from replica.config import EngineConfig, ReplicaConfig
from replica.detokenizer import StopChecker, make_detokenizer
from replica.engine import Engine
from replica.model.registry import Model
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.text import ModelText
from replica.sequence import SamplingParams, Sequence, SequenceState
from replica.step import Output, StepResult

_KV_MEMORY_BYTES = 2 * 2**30
"""Reserved; only what is written takes memory, and every operation begins with the same blocks."""
_ENDLESS = 10_000
_LOGITS_ROWS = 256
_MATCHES = 500


_SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "fp32": {"weights": "fp32"}}
"""fp32 is the reference for speed and perplexity: nothing in it is quantised."""


class TimedModel:
    """The engine's model, with the time spent in it, and the hidden states of its forwards where asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.seconds = 0.0
        self.kept: list[torch.Tensor] | None = None

    def forward(self, *args: Any) -> torch.Tensor:
        started = clock()
        hidden = self._model.forward(*args)
        self.seconds += clock() - started
        if self.kept is not None:
            self.kept.append(hidden)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        started = clock()
        logits = self._model.logits(hidden)
        self.seconds += clock() - started
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class OurEngine:
    def __init__(self, folder: Path, settings: str) -> None:
        config = EngineConfig(threads=1, kv_memory_bytes=_KV_MEMORY_BYTES, **_SETTINGS[settings])
        built = build_engine(ReplicaConfig(folder=folder, model_name="bench", engine=config))
        assert isinstance(built.engine, Engine)
        self._engine = built.engine
        self._new_cache = built.new_cache
        self._text = ModelText.load(folder)
        # The engine offers no way in, and needs none but for this: its real steps are timed, part by part.
        self._model = TimedModel(self._engine._model)
        self._engine._model = self._model

    def operations(self) -> dict[str, Operation]:
        return {
            "prefill": self.prefill,
            "decode": self.decode,
            "overhead": self.overhead,
            "match": self.match,
            "likelihood": self.likelihood,
        }

    def prefill(self, prompts: list[list[int]]) -> dict[str, Any]:
        """One after the other, from an empty cache: seconds to each one's first token."""
        self._empty_cache()
        seconds = []
        for prompt in prompts:
            started = clock()
            (sequence,) = self._add([prompt], SamplingParams(max_tokens=1, temperature=0))
            while sequence.state is not SequenceState.FINISHED:
                self._engine.step()
            seconds.append(clock() - started)
        return {"seconds": seconds}

    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, Any]:
        """Of steps in which every sequence is given a token. All prompts arrive at once."""
        self._empty_cache()
        sequences = self._add(prompts, SamplingParams(max_tokens=_ENDLESS, temperature=0))
        computed = self._run_until_all_decode(sequences)
        started = clock()
        tokens = sum(len(self._engine.step().outputs) for _ in range(steps))
        seconds = clock() - started
        self._abort(sequences)
        return {"tokens_per_s": tokens / seconds, "prompt_tokens_computed": computed}

    def overhead(self, prompts: list[list[int]], steps: int, temperature: float, top_p: float) -> dict[str, Any]:
        """Share of decode steps that isn't the model: schedule, batch, sampling, commit, handing over, detokenising."""
        self._empty_cache()
        params = SamplingParams(max_tokens=_ENDLESS, temperature=temperature, top_p=top_p)
        sequences = self._add(prompts, params)
        self._run_until_all_decode(sequences)
        handover = _Handover(self._text, sequences)
        self._model.seconds = 0.0
        started = clock()
        for _ in range(steps):
            handover.deliver(self._engine.step())
        seconds = clock() - started
        handover.close()
        self._abort(sequences)
        return {"share": 1 - self._model.seconds / seconds, "step_ms": 1e3 * seconds / steps}

    def match(self, tokens: int) -> dict[str, Any]:
        """Of a prompt that the tree holds up to its last token, and that was never matched before."""
        cache = self._new_cache()
        prompt = list(range(tokens + 1))
        first, second = (Sequence(name, prompt, SamplingParams(1), namespace=0) for name in ("first", "second"))
        cache.admit(first)
        assert cache.reserve(first, len(prompt))
        first.num_computed = tokens
        cache.commit(first)
        samples = []
        for _ in range(_MATCHES):
            second.match_hint = None
            started = clock()
            matched = cache.match(second)
            samples.append(clock() - started)
            assert matched == tokens // BLOCK_SIZE * BLOCK_SIZE, f"the tree gave {matched} of {tokens} tokens"
        return {"us": 1e6 * statistics.median(samples)}

    @torch.inference_mode()
    def likelihood(self, windows: list[list[int]]) -> dict[str, Any]:
        """Teacher-forced, each window from an empty cache: the sum of -ln p over all tokens but each window's first."""
        total, count = 0.0, 0
        for window in windows:
            self._empty_cache()
            self._model.kept = []
            (sequence,) = self._add([window], SamplingParams(max_tokens=1, temperature=0))
            while sequence.state is not SequenceState.FINISHED:
                self._engine.step()
            hidden = torch.cat(self._model.kept)[: len(window) - 1]
            self._model.kept = None
            targets = torch.tensor(window[1:])
            for start in range(0, len(targets), _LOGITS_ROWS):
                rows = slice(start, start + _LOGITS_ROWS)
                total += float(F.cross_entropy(self._model.logits(hidden[rows]), targets[rows], reduction="sum"))
            count += len(targets)
        return {"nats": total, "tokens": count}

    def _add(self, prompts: list[list[int]], params: SamplingParams) -> list[Sequence]:
        sequences = [Sequence(f"bench-{n}", prompt, params, namespace=0) for n, prompt in enumerate(prompts)]
        for sequence in sequences:
            self._engine.add(sequence)
        return sequences

    def _run_until_all_decode(self, sequences: list[Sequence]) -> int:
        """Prompt tokens that were computed for it."""
        computed = 0
        while not all(sequence.is_decoding for sequence in sequences):
            computed += self._engine.step().work.tokens
        return computed

    def _abort(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._engine.abort(sequence)

    def _empty_cache(self) -> None:
        self._engine.replace_cache(self._new_cache())


class _Handover:
    """From a step to each answer's text, over an event loop as in the server."""

    def __init__(self, text: ModelText, sequences: list[Sequence]) -> None:
        self._loop = asyncio.new_event_loop()
        self._queues: dict[str, asyncio.Queue[Output]] = {sequence.id: asyncio.Queue() for sequence in sequences}
        self._texts = {
            sequence.id: AnswerText(make_detokenizer(text.tokenizer), StopChecker([])) for sequence in sequences
        }

    def deliver(self, step: StepResult) -> None:
        self._loop.call_soon_threadsafe(self._put, step.outputs)
        self._loop.run_until_complete(self._read(step.outputs))

    def close(self) -> None:
        self._loop.close()

    def _put(self, outputs: tuple[Output, ...]) -> None:
        for output in outputs:
            self._queues[output.sequence.id].put_nowait(output)

    async def _read(self, outputs: tuple[Output, ...]) -> None:
        for output in outputs:
            name = output.sequence.id
            answer = self._texts[name]
            answer.push(await self._queues[name].get())
            answer.take()


if __name__ == "__main__":
    serve(lambda: OurEngine(Path(sys.argv[1]), sys.argv[2]).operations(), "ryokan")
