"""What a chat template writes around messages, found without looking at what they say.

The template is rendered with holes in place of contents. A hole can be joined with text, printed and asked whether it
is a string, and nothing else: a template that looks into it in any other way ends the attempt. So where there is a
skeleton, the template writes contents as they are, whatever they are, and rendering the same roles again is filling in
the holes. Templates that trim or take apart what messages say have none, and are rendered as ever.
"""

import dataclasses
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NoReturn

from jinja2 import nodes

from replica.protocol.text import ModelText, TemplateError, compile_template

MESSAGES_MAX = 256
"""Of a chat; longer ones are rendered."""
SHAPES = 1024
"""Sequences of roles whose skeletons are remembered."""

Parts = tuple[str | int, ...]
"""Texts, and places of messages whose contents stand between them."""

_MARK = re.compile("\0([0-9]+)\0")
_CAPTURES = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block)
"""Make printed text into a value, which can then be looked at."""
_CHANGING = frozenset(("strftime_now", "lipsum", "random"))
"""Names of what isn't the same each time."""


class _Looked(BaseException):
    """The template looks at what a message says. No Exception, as templates' own tests catch those."""


def _looked(*arguments: object) -> NoReturn:
    raise _Looked


class _Hole:
    __slots__ = ("parts",)

    parts: Parts

    def __init__(self, *parts: str | int) -> None:
        _SET_PARTS(self, parts)

    def __add__(self, other: object) -> "_Hole":
        return _Hole(*_PARTS(self), *_parts_of(other))

    def __radd__(self, other: object) -> "_Hole":
        return _Hole(*_parts_of(other), *_PARTS(self))

    def __getattribute__(self, name: str) -> Any:
        # For isinstance().
        return str if name == "__class__" else _looked()

    __str__ = __repr__ = __format__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = _looked
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __mul__ = __rmul__ = __mod__ = _looked


_SET_PARTS = _Hole.__dict__["parts"].__set__
_PARTS = _Hole.__dict__["parts"].__get__


def _parts_of(value: object) -> Parts:
    if type(value) is _Hole:
        parts: Parts = _PARTS(value)
        return parts
    return (value,) if type(value) is str else _looked()


def _printed(value: object) -> object:
    """What jinja writes for it."""
    if type(value) is not _Hole:
        return value
    return "".join([f"\0{part}\0" if isinstance(part, int) else part for part in _PARTS(value)])


class Skeletons:
    """Of one model's chats, by their roles."""

    def __init__(self, text: ModelText) -> None:
        self._known: OrderedDict[tuple[str, ...], Parts | None] = OrderedDict()
        self._text = text if _is_transparent(text) else None
        if self._text is not None:
            template = compile_template(text.template_source, finalize=_printed)
            self._text = dataclasses.replace(text, template=template)

    def of(self, roles: tuple[str, ...]) -> Parts | None:
        """None where there is none."""
        if self._text is None or len(roles) > MESSAGES_MAX:
            return None
        if roles not in self._known:
            self._known[roles] = _skeleton(self._text, roles)
            if len(self._known) > SHAPES:
                self._known.popitem(last=False)
        return self._known[roles]


def filled(parts: Parts, contents: Sequence[str]) -> str:
    """The rendered chat: for tests."""
    return "".join([contents[part] if isinstance(part, int) else part for part in parts])


def _skeleton(text: ModelText, roles: tuple[str, ...]) -> Parts | None:
    messages = [{"role": role, "content": _Hole(place)} for place, role in enumerate(roles)]
    try:
        pieces = _MARK.split(text.render(messages))
    except (TemplateError, _Looked):
        return None
    parts = [int(piece) if number % 2 else piece for number, piece in enumerate(pieces)]
    return tuple(part for part in parts if part != "")


def _is_transparent(text: ModelText) -> bool:
    """Whether what its template has printed stays printed, and is the same each time."""
    source = text.template_source
    if text.template is None or "\0" in source:
        return False
    tree = text.template.environment.parse(source)
    names = {node.name for node in tree.find_all(nodes.Name)} | {node.name for node in tree.find_all(nodes.Filter)}
    recursive = any(node.recursive for node in tree.find_all(nodes.For))
    return not recursive and not names & _CHANGING and next(tree.find_all(_CAPTURES), None) is None
