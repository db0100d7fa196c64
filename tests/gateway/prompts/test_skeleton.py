"""Templates rendered with holes, beside the same ones rendered with what messages say."""

import dataclasses
from pathlib import Path
from random import Random

import pytest

from gateway.prompts.skeleton import MESSAGES_MAX, Skeletons, filled
from replica.protocol.text import ModelText, TemplateError, compile_template

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OPAQUE = {
    "chatml": CHATML,
    "by attribute": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ eos_token }}",
    "asks whether it is a string": (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    ),
    "by a variable": "{% for m in messages %}{% set said = m.content %}{{ 'a' + said + said }}{% endfor %}",
    "system first": (
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
        "{{ system }}{% for m in rest %}|{{ m.content }}{% endfor %}"
    ),
    "refuses roles": (
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    ),
}
PRYING = {
    "trims": "{{ messages[0].content | trim }}",
    "strips": "{{ messages[0].content.strip() }}",
    "is empty": "{% if messages[0].content %}a{% endif %}",
    "equals": "{% if messages[0].content == 'x' %}a{% endif %}",
    "is in a list": "{% if messages[0].content in ['x', 'y'] %}a{% endif %}",
    "holds": "{% if 'x' in messages[0].content %}a{% endif %}",
    "has a length": "{{ messages[0].content | length }}",
    "is a sequence": "{% if messages[0].content is sequence %}a{% endif %}",
    "is iterable": "{% if messages[0].content is iterable %}a{% endif %}",
    "is lower": "{% if messages[0].content is lower %}a{% endif %}",
    "letters": "{% for letter in messages[0].content %}{{ letter }}.{% endfor %}",
    "a slice": "{{ messages[0].content[:2] }}",
    "splits": "{{ messages[0].content.split('</think>')[-1] }}",
    "an attribute": "{% if messages[0].content.upper is defined %}a{% endif %}",
    "as JSON": "{{ messages[0].content | tojson }}",
    "the whole message": "{{ messages[0] }}",
    "joined and trimmed": "{{ (messages[0].content ~ ' ') | trim }}",
    "formatted": "{{ ('%s ' % messages[0].content) | trim }}",
    "formatted by a method": "{{ '{} '.format(messages[0].content).strip() }}",
    "joined list": "{{ ([messages[0].content, ' '] | join).strip() }}",
    "captured": "{% set x %}{{ messages[0].content }}{% endset %}{{ x | trim }}",
    "a macro": "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(messages[0].content) | trim }}",
    "a block": "{% block b %}{{ messages[0].content }}{% endblock %}",
    "a filter block": "{% filter trim %}{{ messages[0].content }}{% endfilter %}",
    "recursive": "{% for m in messages recursive %}{{ m.content }}{% endfor %}",
    "compared messages": "{% if messages[0] == messages[-1] %}a{% endif %}",
    "sorted": "{% for m in messages | sort(attribute='content') %}{{ m.content }}{% endfor %}",
    "the time": "{{ strftime_now('%H') }}{{ messages[0].content }}",
    "at random": "{{ [1, 2, 3] | random }}{{ messages[0].content }}",
    "a default": "{{ messages[0].content | default('x', true) }}",
    "replaced": "{{ 'abc' | replace('b', messages[0].content) }}",
}
ROLES = ("system", "user", "assistant")
CONTENTS = ("", " ", "x", "<|im_end|>", "\0000\0", "é日本", " a\n ", "{{ 1 + 1 }}", "y" * 50)


@pytest.fixture(scope="module")
def text(model_folder: Path) -> ModelText:
    return ModelText.load(model_folder)


def with_template(text: ModelText, source: str) -> ModelText:
    return dataclasses.replace(text, template=compile_template(source), template_source=source)


@pytest.mark.parametrize("name", OPAQUE)
def test_filling_a_skeleton_is_rendering(text: ModelText, name: str) -> None:
    print("seed", 1)
    rng = Random(1)
    text = with_template(text, OPAQUE[name])
    skeletons = Skeletons(text)
    for _ in range(100):
        roles = tuple(rng.choices(ROLES, k=rng.randrange(1, 6)))
        contents = rng.choices(CONTENTS, k=len(roles))
        messages = [{"role": role, "content": said} for role, said in zip(roles, contents, strict=True)]
        parts = skeletons.of(roles)
        assert parts is not None
        assert filled(parts, contents) == text.render(messages)


@pytest.mark.parametrize("name", PRYING)
def test_a_template_that_looks_at_contents_has_none(text: ModelText, name: str) -> None:
    assert Skeletons(with_template(text, PRYING[name])).of(("user", "user")) is None


def test_roles_that_a_template_refuses_have_none(text: ModelText) -> None:
    text = with_template(text, OPAQUE["refuses roles"])
    skeletons = Skeletons(text)
    assert skeletons.of(("tool", "user")) is None
    with pytest.raises(TemplateError):
        text.render([{"role": "tool", "content": "x"}])
    assert skeletons.of(("user",)) is not None


def test_long_chats_and_models_without_a_template_have_none(text: ModelText) -> None:
    assert Skeletons(text).of(("user",) * MESSAGES_MAX) is not None
    assert Skeletons(text).of(("user",) * (MESSAGES_MAX + 1)) is None
    assert Skeletons(dataclasses.replace(text, template=None, template_source="")).of(("user",)) is None
