"""Answers that must follow a grammar: walks at random over what is allowed, and the real model at temperature 1."""

import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from replica import grammar
from replica.grammar import GrammarCompiler, GrammarError, GrammarSpec
from replica.protocol.text import ModelText
from replica.sequence import ConstraintError, FinishReason, SamplingParams, Sequence, TokenConstraint
from tests.engines import make_engine, run

ROOT = Path(__file__).parent.parent.parent


class Room(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["single", "double", "suite"]
    step_free: bool
    floor: int = Field(ge=-2, le=40)


class Hotel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    stars: int | None
    postcode: str = Field(pattern=r"^[1-9][0-9]{3}$")
    rooms: list[Room] = Field(min_length=1, max_length=3)


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    label: Literal["a", "ü", "🗻"]
    left: "Tree | None" = None


SCHEMAS: list[type[BaseModel]] = [Room, Hotel, Tree]
REGEXES = [
    r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]",
    r"(ja|nein|vielleicht)",
    r"[^a]{3,8}",
    r"(東京|Zürich|🗻 ){1,3}",
    r"x*y",
]


def schema(model: type[BaseModel]) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(model.model_json_schema()))


def allowed(constraint: TokenConstraint) -> list[int]:
    mask = int.from_bytes(constraint.bitmask(), "little")
    return [token for token in range(mask.bit_length()) if mask >> token & 1]


def walk(text: ModelText, constraint: TokenConstraint, choose: Callable[[list[int]], int], limit: int = 2000) -> str:
    """The text of tokens chosen among those allowed, to the end."""
    tokens: list[int] = []
    while not constraint.is_finished:
        token = choose(allowed(constraint))
        if token in text.stop_token_ids:
            break
        constraint.accept(token)
        tokens.append(token)
        assert len(tokens) < limit
    return text.decode(tokens)


@pytest.fixture(scope="module")
def compiler(tiny_text: ModelText) -> GrammarCompiler:
    return GrammarCompiler(tiny_text)


@pytest.mark.parametrize("model", SCHEMAS)
def test_any_walk_through_a_schema_validates(
    tiny_text: ModelText, compiler: GrammarCompiler, model: type[BaseModel], seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        answer = walk(tiny_text, compiler.compile(schema(model)), rng.choice)
        model.model_validate_json(answer, strict=True)


@pytest.mark.parametrize("regex", REGEXES)
def test_any_walk_through_a_regex_matches(
    tiny_text: ModelText, compiler: GrammarCompiler, regex: str, seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        answer = walk(tiny_text, compiler.compile(GrammarSpec("regex", regex)), rng.choice)
        assert re.fullmatch(regex, answer)


def test_a_grammar_in_lark_s_syntax(tiny_text: ModelText, compiler: GrammarCompiler, seed: int) -> None:
    rng = random.Random(seed)
    spec = GrammarSpec("grammar", 'start: sum\nsum: NUMBER | "(" sum "+" sum ")"\nNUMBER: /[1-9][0-9]?/')
    for _ in range(20):
        # Not evenly among tokens: sums of sums would go on for ever.
        answer = walk(tiny_text, compiler.compile(spec), lambda tokens: rng.choice(tokens[-5:]))
        assert isinstance(eval(answer, {"__builtins__": {}}), int)


def test_json_object_is_any_object_and_nothing_else(tiny_text: ModelText, compiler: GrammarCompiler, seed: int) -> None:
    rng = random.Random(seed)
    spec = GrammarSpec("json_object", "")
    assert tiny_text.decode(allowed(compiler.compile(spec))) == "{"
    closing = set(tiny_text.encode_plain('"}]'))

    def soon_closed(tokens: list[int]) -> int:
        ends = [token for token in tokens if token in closing]
        return rng.choice(ends if ends and rng.random() < 0.7 else tokens)

    for _ in range(20):
        assert isinstance(json.loads(walk(tiny_text, compiler.compile(spec), soon_closed)), dict)


@pytest.mark.parametrize("spec", [GrammarSpec("json_object", ""), schema(Hotel)])
def test_an_answer_cannot_be_filled_with_whitespace(
    tiny_text: ModelText, compiler: GrammarCompiler, spec: GrammarSpec
) -> None:
    constraint = compiler.compile(spec)
    (brace,) = tiny_text.encode_plain("{")
    constraint.accept(brace)
    spaces = set(tiny_text.encode_plain(" \n\t\r"))
    count = 0
    while blank := spaces.intersection(allowed(constraint)):
        constraint.accept(min(blank))
        count += 1
        assert count < 100
    assert 1 <= count <= 17


def test_at_the_end_only_the_model_s_stop_tokens_are_left(tiny_text: ModelText, compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(GrammarSpec("regex", "ab"))
    a, b = tiny_text.encode_plain("ab")
    assert allowed(constraint) == [a]
    constraint.accept(a)
    assert allowed(constraint) == [b]
    constraint.accept(b)
    assert constraint.is_finished
    assert set(allowed(constraint)) == tiny_text.stop_token_ids
    open_end = compiler.compile(GrammarSpec("regex", "a+"))
    open_end.accept(a)
    assert set(allowed(open_end)) == {a, *tiny_text.stop_token_ids} and not open_end.is_finished


def test_constraints_of_one_grammar_are_independent(tiny_text: ModelText, compiler: GrammarCompiler) -> None:
    spec = GrammarSpec("regex", "abc|xyz")
    first, second = compiler.compile(spec), compiler.compile(spec)
    (a, x) = tiny_text.encode_plain("ax")
    first.accept(a)
    second.accept(x)
    assert allowed(first) == tiny_text.encode_plain("b")
    assert allowed(second) == tiny_text.encode_plain("y")
    assert allowed(compiler.compile(spec)) == sorted([a, x])


def test_a_token_that_is_not_allowed_fails_the_constraint(tiny_text: ModelText, compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(GrammarSpec("regex", "ab"))
    (z,) = tiny_text.encode_plain("z")
    with pytest.raises(ConstraintError):
        constraint.accept(z)


BAD = [
    (GrammarSpec("json_schema", '{"type": "foo"}'), "foo"),
    (GrammarSpec("json_schema", '{"properties": {"a": {"$ref": "#/nowhere"}}}'), "nowhere"),
    (GrammarSpec("json_schema", '{"not": {"type": "string"}}'), "not"),
    (GrammarSpec("json_schema", '{"type": "array", "minItems": 5, "maxItems": 2}'), "minItems"),
    (GrammarSpec("json_schema", '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'), "json_schema"),
    (GrammarSpec("json_schema", "[1]"), "object"),
    (GrammarSpec("json_schema", "{"), "object"),
    (GrammarSpec("json_schema", '{"a":' * 5000 + "{}" + "}" * 5000), "recursion"),
    (
        GrammarSpec("json_schema", json.dumps({"anyOf": [{"properties": {f"k{n}": {}}} for n in range(2000)]})),
        "json_schema",
    ),
    (GrammarSpec("regex", "[0-9"), "unclosed"),
    (GrammarSpec("regex", "(?=a)b"), "look-ahead"),
    (GrammarSpec("regex", "x" * 300_000), "bytes"),
    (GrammarSpec("regex", "(" * 3000), "regex"),
    (GrammarSpec("grammar", "start: nowhere"), "nowhere"),
    (GrammarSpec("grammar", "not a grammar"), "grammar"),
    (GrammarSpec("grammar", ""), "grammar"),
]


@pytest.mark.parametrize(("spec", "word"), BAD, ids=range(len(BAD)))
def test_bad_grammars_are_refused_with_a_reason(compiler: GrammarCompiler, spec: GrammarSpec, word: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(word)) as caught:
        compiler.compile(spec)
    assert len(str(caught.value)) < 600


def test_few_compiled_grammars_are_kept(tiny_text: ModelText) -> None:
    compiler = GrammarCompiler(tiny_text)
    specs = [GrammarSpec("regex", f"a{n}") for n in range(grammar._MAX_COMPILED + 5)]
    for spec in specs:
        compiler.compile(specs[0])
        compiler.compile(spec)
    assert list(compiler._compiled) == [*specs[6:-1], specs[0], specs[-1]]


def test_compiling_in_many_threads(tiny_text: ModelText) -> None:
    compiler = GrammarCompiler(tiny_text)
    found: list[list[int]] = []

    def compile_some(number: int) -> None:
        for n in range(20):
            found.append(allowed(compiler.compile(GrammarSpec("regex", "abc"[(n + number) % 3] + "x"))))

    threads = [threading.Thread(target=compile_some, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [tiny_text.encode_plain(letter) for letter in "abc"]
    assert len(found) == 120 and all(tokens in expected for tokens in found)


def test_the_library_is_loaded_when_a_grammar_is_asked_for(tiny_folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from replica.protocol.text import ModelText;"
        "from replica.grammar import GrammarCompiler, GrammarSpec;"
        f"compiler = GrammarCompiler(ModelText.load(Path({str(tiny_folder)!r})));"
        "assert 'llguidance' not in sys.modules; compiler.compile(GrammarSpec('regex', 'a'));"
        "assert 'llguidance' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.model
def test_the_model_s_answers_follow_their_grammars_at_temperature_1(
    model_folder: Path, model_text: ModelText, seed: int
) -> None:
    """All in one batch; what is right is told by pydantic and `re`, not by the library that made the masks."""
    compiler = GrammarCompiler(model_text)
    checks: dict[str, Callable[[str], object]] = {}
    sequences: list[Sequence] = []
    rng = random.Random(seed)

    def ask(spec: GrammarSpec, check: Callable[[str], object]) -> None:
        prompt = model_text.encode_chat(model_text.render([{"role": "user", "content": "A hotel in Zürich?"}]))
        params = SamplingParams(120, seed=rng.randrange(2**32), stop_token_ids=model_text.stop_token_ids)
        name = f"{len(sequences)}"
        sequences.append(Sequence(name, prompt, params, 0, constraint=compiler.compile(spec)))
        checks[name] = check

    for _ in range(2):
        for model in SCHEMAS:
            ask(schema(model), lambda answer, model=model: model.model_validate_json(answer, strict=True))  # type: ignore[misc]
        for regex in REGEXES:
            ask(GrammarSpec("regex", regex), re.compile(regex).fullmatch)
        ask(GrammarSpec("json_object", ""), json.loads)
    outputs = run(make_engine(model_folder, num_pages=800, int8=True), sequences)
    finished = 0
    for sequence in sequences:
        answer = model_text.decode(sequence.tokens[len(sequence.prompt) :])
        if outputs[sequence.id][-1].finish_reason is FinishReason.STOP:
            assert checks[sequence.id](answer) is not None, answer
            finished += 1
    # An object without a schema may go on for longer than max_tokens; a tree may grow.
    assert finished >= len(sequences) * 0.6
