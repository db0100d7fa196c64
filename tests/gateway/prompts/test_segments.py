import dataclasses
from pathlib import Path
from random import Random

import pytest

from gateway.prompts.memo import SegmentMemo
from gateway.prompts.segments import SegmentEncoder
from gateway.prompts.skeleton import Skeletons
from replica.protocol.text import ModelText, compile_template
from tests.gateway.fakes import write_model

NAMES = ("<|im_start|>", "<|im_end|>", "<|x|>")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return ModelText.load(write_model(tmp_path_factory.mktemp("models") / "apart", names=NAMES))


def encoder_of(text: ModelText) -> SegmentEncoder:
    return SegmentEncoder(text, SegmentMemo(1 << 20))


def test_what_is_known_is_tokenised_at_once_and_the_same(text: ModelText) -> None:
    encoder = encoder_of(text)
    rendered = text.render([{"role": "user", "content": "the question " * 100}])
    assert encoder.encode_known(rendered, 100) is None
    for most in (10_000, 0):
        known = encoder.encode_known(rendered, most)
        assert known is not None and known.tokens == text.encode_chat(rendered)


@pytest.mark.parametrize("seed", range(4))
def test_a_filled_plan_is_the_rendered_chat_s_tokens(text: ModelText, seed: int) -> None:
    """Also where contents hold special tokens, or what becomes one with the text around it."""
    print("seed", seed)
    rng = Random(seed)
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n<|{{ m.content }}|><|im_end|>{% endfor %}x<|im_"
    if seed % 2:
        text = dataclasses.replace(text, template=compile_template(source), template_source=source)
    encoder, skeletons = encoder_of(text), Skeletons(text)
    pieces = [*NAMES, "the", " ", "\n", "<|", "|>", "<", "x", "im_end", "é", ""]
    for _ in range(100):
        roles = tuple(rng.choices(("system", "user", "assistant"), k=rng.randrange(1, 5)))
        contents = ["".join(rng.choices(pieces, k=rng.randrange(6))) for _ in roles]
        messages = [{"role": role, "content": said} for role, said in zip(roles, contents, strict=True)]
        parts = skeletons.of(roles)
        assert parts is not None
        plan = encoder.plan(parts)
        assert plan is not None
        ids = encoder.fill(plan, contents)
        rendered = text.render(messages)
        assert ids is not None and ids.tokens == text.encode_chat(rendered), rendered
        assert plan.chars + sum(map(len, contents)) == len(rendered)


def test_a_plan_says_when_too_much_is_new(text: ModelText) -> None:
    encoder = encoder_of(text)
    parts = Skeletons(text).of(("user",))
    assert parts is not None
    plan = encoder.plan(parts)
    assert plan is not None
    assert encoder.fill(plan, ["the ramp " * 20], 100) is None
    assert encoder.fill(plan, ["the ramp " * 20]) is not None
    assert encoder.fill(plan, ["the ramp " * 20], 0) is not None


@pytest.mark.parametrize("names", [("<|a|>", "<|a|><|b|>"), ("<|a|>", "|>x"), ("aa",), ("ab", "ba")])
def test_special_tokens_that_may_overlap_are_looked_for_in_the_whole(tmp_path: Path, names: tuple[str, ...]) -> None:
    text = ModelText.load(write_model(tmp_path / "overlap", names=names))
    assert encoder_of(text).plan(("<|a|>", 0)) is None
