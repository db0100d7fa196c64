"""Frozen dataclasses of numpy arrays over a socket: a header in JSON, then the arrays' own bytes. Nothing that is
received is ever executed, as a pickle would be.

A frame: kind (u8), length of the header (u32), bytes of the arrays (u64), little-endian; the header; the arrays, each
from a multiple of 8. The types of the fields say how the header is read, so sender and receiver are of one release.
"""

import dataclasses
import functools
import socket
import struct
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

_PREFIX = struct.Struct("<BxxxIQ")
_ALIGNMENT = 8

T = TypeVar("T")


class Closed(Exception):
    """The other end has closed the connection."""


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    text: str


def pack(kind: int, value: Any) -> list[bytes | memoryview]:
    """`value`: None, or a dataclass whose fields are arrays, dataclasses, tuples of plain values, paths or plain
    values; each but arrays may be None."""
    arrays: list[NDArray[Any]] = []
    header = orjson.dumps(_flatten(value, arrays))
    parts: list[bytes | memoryview] = []
    total = 0
    for array in arrays:
        if array.nbytes:
            parts.append(array.data.cast("B"))
            padding = -array.nbytes % _ALIGNMENT
            if padding:
                parts.append(bytes(padding))
            total += array.nbytes + padding
    return [_PREFIX.pack(kind, len(header), total), header, *parts]


def send(connection: socket.socket, frame: list[bytes | memoryview]) -> None:
    """Raises Closed."""
    try:
        sent = connection.sendmsg(frame)
        if sent < sum(len(part) for part in frame):
            connection.sendall(b"".join(frame)[sent:])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def receive(connection: socket.socket) -> tuple[int, bytes, memoryview]:
    """Kind, header and arrays. Raises Closed."""
    kind, header_length, total = _PREFIX.unpack(_read(connection, _PREFIX.size))
    body = _read(connection, header_length + total)
    return kind, bytes(body[:header_length]), body[header_length:]


def unpack(kind: type[T], header: bytes, data: memoryview) -> T:
    """Arrays are copied out of `data`, and so aligned and one's own."""
    value: T = _restore(kind, orjson.loads(header), _Reader(data))
    return value


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, dtype: str, shape: list[int]) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        if array.nbytes:
            array.data.cast("B")[:] = self._data[self._at : self._at + array.nbytes]
            self._at += array.nbytes + -array.nbytes % _ALIGNMENT
        return array


def _read(connection: socket.socket, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    filled = 0
    while filled < size:
        try:
            count = connection.recv_into(data[filled:])
        except ConnectionResetError as error:
            raise Closed from error
        if not count:
            raise Closed
        filled += count
    return data


def _flatten(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return [value.dtype.str, value.shape]
    if dataclasses.is_dataclass(value):
        of: Any = type(value)
        return [_flatten(getattr(value, name), arrays) for name in _fields(of)]
    return str(value) if isinstance(value, Path) else value


def _restore(kind: Any, node: Any, reader: _Reader) -> Any:
    if node is None:
        return None
    kind = _without_none(kind)
    if hasattr(kind, "__dataclass_fields__"):
        fields = _fields(kind).items()
        return kind(**{name: _restore(hint, part, reader) for (name, hint), part in zip(fields, node, strict=True)})
    if kind is np.ndarray or typing.get_origin(kind) is np.ndarray:
        return reader.take(*node)
    if typing.get_origin(kind) is tuple:
        return tuple(node)
    if isinstance(kind, type) and issubclass(kind, Path | Enum):
        return kind(node)
    return node


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


@functools.cache
def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(one for one in typing.get_args(kind) if one is not types.NoneType)
    return kind
