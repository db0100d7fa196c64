"""The text side of a model folder: its chat template, its tokenizer, its limits. Gateway and replica share this file,
since a prompt that both don't render to the same token ids would never find its blocks."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import xxhash
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from replica.protocol.tools import ToolFormat, tool_format

LONG = 4096
"""Characters, from which tokenising would hold up the process's other threads."""


class ModelFolderError(ValueError):
    """The folder is no usable model in Hugging Face format."""


class TemplateError(ValueError):
    """The chat template refuses these messages."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """What a gateway needs of a model, and a replica too: no weights."""

    name: str
    tokenizer: Tokenizer
    template: jinja2.Template | None
    tool_format: ToolFormat | None
    """How the chat template has the model write calls; None where it knows no tools, or in no way that we parse."""
    special_variables: dict[str, str]
    special_tokens: tuple[str, ...]
    """Texts that the tokenizer always cuts out whole."""
    stop_token_ids: frozenset[int]
    vocab_size: int
    max_context: int
    max_chars: int
    """Text longer than this has more tokens than that, whatever they are."""
    model_fingerprint: str
    tokenizer_fingerprint: str
    template_fingerprint: str
    """Of the chat template."""
    template_source: str
    """Empty where there is none."""

    @classmethod
    def load(cls, folder: Path, name: str | None = None) -> "ModelText":
        """Reads config.json, tokenizer.json, tokenizer_config.json and, if there, generation_config.json and
        chat_template.jinja. Raises ModelFolderError."""
        config = _read_json(folder, "config.json")
        tokenizer_config = _read_json(folder, "tokenizer_config.json", required=False)
        generation_config = _read_json(folder, "generation_config.json", required=False)
        tokenizer_path = folder / "tokenizer.json"
        if not tokenizer_path.is_file():
            raise ModelFolderError(f"{folder} has no tokenizer.json")
        template_source = _template_source(folder, tokenizer_config)
        tokenizer = _tokenizer(tokenizer_path)
        special_tokens = tuple(
            added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special
        )
        max_context = _positive(folder, config, _context_name(config))
        return cls(
            name=name or folder.name,
            tokenizer=tokenizer,
            template=compile_template(template_source) if template_source else None,
            tool_format=tool_format(template_source or ""),
            special_variables=_special_variables(tokenizer_config),
            special_tokens=special_tokens,
            stop_token_ids=_stop_token_ids(config, generation_config),
            vocab_size=_positive(folder, config, "vocab_size"),
            max_context=max_context,
            max_chars=max_context * max(map(len, tokenizer.get_vocab()), default=1),
            model_fingerprint=_fingerprint(json.dumps(config, sort_keys=True).encode()),
            tokenizer_fingerprint=_fingerprint(tokenizer_path.read_bytes()),
            template_fingerprint=_fingerprint((template_source or "").encode()),
            template_source=template_source or "",
        )

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a chat, by default ending where the assistant begins. `variables` come before the
        template's own. Raises TemplateError."""
        if self.template is None:
            raise TemplateError(f"the model {self.name} has no chat template; use /v1/completions")
        # NOTE: templates ask whether tools "is defined" as well as whether it is none; transformers always passes it.
        given = self.special_variables | {"tools": list(tools) or None, "documents": None} | dict(variables or {})
        try:
            return self.template.render(messages=messages, add_generation_prompt=add_generation_prompt, **given)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error

    def encode_chat(self, rendered: str) -> list[int]:
        """Token ids of rendered chat text: special tokens only where the template wrote them."""
        return self._ids(rendered, add_special_tokens=False)

    def encode_plain(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw completion prompt, by default with the special tokens that the tokenizer itself adds."""
        return self._ids(text, add_special_tokens)

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        # NOTE: encode() keeps the GIL, 50 ms for 400,000 characters; this one lets go of it, and costs more.
        if len(text) > LONG:
            return self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens))


def _read_json(folder: Path, name: str, required: bool = True) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        if required:
            raise ModelFolderError(f"{folder} has no {name}")
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelFolderError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} holds no JSON object")
    return value


def _positive(folder: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelFolderError(f"{folder / 'config.json'}: {name} must be a positive number, not {value!r}")
    return value


def _context_name(config: dict[str, Any]) -> str:
    """GPT-2 and those after it call it `n_positions`."""
    return "n_positions" if "n_positions" in config else "max_position_embeddings"


def _tokenizer(path: Path) -> Tokenizer:
    data = path.read_bytes()
    try:
        json.loads(data)
        return Tokenizer.from_buffer(data)
    except ValueError as error:
        raise ModelFolderError(f"{path} is no tokenizer: {error}") from error


def _template_source(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = tokenizer_config.get("chat_template")
    if isinstance(source, list):
        # Several named templates: the one called "default" is the chat's.
        source = next((item["template"] for item in source if item.get("name") == "default"), None)
    return source


def compile_template(source: str, finalize: Callable[[object], object] | None = None) -> jinja2.Template:
    """In the environment that Hugging Face's templates are written for. `finalize`: what is printed for a value."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], finalize=finalize
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_template_error
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """With the arguments that templates give transformers' filter of this name."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)


def _special_variables(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """bos_token and the like, which templates refer to by name; stored as text or as an object with `content`."""
    variables = {}
    for key, value in tokenizer_config.items():
        if key.endswith("_token") and isinstance(value, str | dict):
            variables[key] = value if isinstance(value, str) else str(value.get("content", ""))
    return variables


def _stop_token_ids(config: dict[str, Any], generation_config: dict[str, Any]) -> frozenset[int]:
    ids: set[int] = set()
    for source in (config, generation_config):
        value = source.get("eos_token_id")
        ids.update([value] if isinstance(value, int) else value or [])
    return frozenset(ids)


def _fingerprint(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)
