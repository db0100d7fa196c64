"""A chat model folder without a model, and a report as a comparison would make it."""

import json
from pathlib import Path
from random import Random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from loadtest import travel_text
from loadtest.client import RequestRecord
from loadtest.metrics import compare_figures, median_figures, summarise
from loadtest.report import Report
from replica.protocol.text import ModelText

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def chatml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer, template and limits only: byte-level BPE, trained on the travel example's own sentences."""
    rng = Random(0)
    notes = travel_text.hotel_notes(rng, "Lisbon")
    corpus = [next(notes) for _ in range(400)]
    corpus += [travel_text.question(rng, city) for city in travel_text.CITIES for _ in range(20)]
    corpus += [travel_text.follow_up(rng, "Lisbon") for _ in range(200)]
    rules = travel_text.guidelines(rng)
    corpus += [next(rules) for _ in range(100)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False, initial_alphabet=_alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    config = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _alphabet() -> list[str]:
    return pre_tokenizers.ByteLevel.alphabet()


@pytest.fixture(scope="session")
def tiny_text(chatml_folder: Path) -> ModelText:
    return ModelText.load(chatml_folder)


@pytest.fixture(params=["tiny_text", pytest.param("model_text", marks=pytest.mark.model)])
def any_text(request: pytest.FixtureRequest) -> ModelText:
    """The tiny tokenizer, and the default model's."""
    text = request.getfixturevalue(request.param)
    assert isinstance(text, ModelText)
    return text


@pytest.fixture
def report() -> Report:
    rounds = {
        policy: [
            summarise(_records(slowness), requests_planned=6, replicas=["r0", "r1"], cached_limit=4000)
            for slowness in (1.0, 1.2)
        ]
        for policy, slowness in (("round_robin", 3.0), ("ttft", 1.0))
    }
    return Report(
        started_at="2026-01-02T03:04:05+00:00",
        command="ryokan compare --gateway http://127.0.0.1:8000",
        model="tiny <model>",
        machine={"cpu": "a CPU", "cores": 2, "memory_gib": 8.0, "os": "Linux 6"},
        versions={"python": "3.11.9"},
        workload={
            "name": "travel",
            "seed": 1,
            "agents": 3,
            "cities": 2,
            "turns": 2,
            "requests": 6,
            "system_tokens": 200,
            "prompt_tokens": 1025,
            "question_tokens": 25,
            "output_tokens": 150,
            "closed_loop": True,
            "ramp_s": 0.0,
            "rate_per_s": None,
            "rounds": 2,
        },
        order=["round_robin", "ttft", "ttft", "round_robin"],
        warmup={"requests": 24, "duration_s": 1.5},
        policies={policy: median_figures(figures) | {"rounds": figures} for policy, figures in rounds.items()},
        ratios={
            "policy": "ttft",
            "baseline": "round_robin",
            **compare_figures(rounds["ttft"], rounds["round_robin"]),
        },
        request={
            "policy": "ttft",
            "replica": "r1",
            "prompt_tokens": 1025,
            "cached_tokens": 992,
            "output_tokens": 3,
            "ttft_s": 0.05,
            "latency_s": 0.09,
            "request_id": "abc",
            "events": [
                {"event": "received", "at_s": 0.0},
                {"event": "tokenised", "at_s": 0.002, "tokens": 1025},
                {"event": "first_token", "at_s": 0.05},
                {"event": "done", "at_s": 0.09},
            ],
            "kv": [[0.01, 0], [0.05, 1025], [0.07, 1026], [0.09, 1027]],
        },
        samples={"round_robin": {"ttft_s": [0.3, 0.6, 0.9]}, "ttft": {"ttft_s": [0.1, 0.2, 0.2]}},
    )


def _records(slowness: float) -> list[RequestRecord]:
    return [
        RequestRecord(
            messages=[],
            agent=number // 2,
            turn=number % 2,
            first_token_s=0.1 * slowness * (number + 1),
            end_s=slowness * (number + 1),
            prompt_tokens=1025,
            output_tokens=150,
            cached_tokens=512,
            predicted_tokens=528,
            replica=f"r{number % 2}",
        )
        for number in range(6)
    ]
