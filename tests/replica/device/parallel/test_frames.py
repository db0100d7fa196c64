import socket
import threading
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from replica.device.parallel import frames


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    starts: NDArray[np.int32]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    tokens: NDArray[np.int64]
    points: NDArray[np.float64]
    flags: np.ndarray[Any, np.dtype[np.bool_]]
    inner: Inner | None
    count: int
    share: float
    shape: tuple[int, ...]
    folder: Path
    colour: Colour
    missing: NDArray[np.int32] | None = None


def example(rows: int = 5) -> Outer:
    return Outer(
        tokens=np.arange(rows, dtype=np.int64) << 40,
        points=np.linspace(0, 1, rows),
        flags=np.array([True, False, True]),
        inner=Inner(np.arange(6, dtype=np.int32).reshape(2, 3).T),
        count=3,
        share=0.25,
        shape=(1, 2),
        folder=Path("/a/b"),
        colour=Colour.RED,
    )


def same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif hasattr(left, "__dataclass_fields__"):
        for field in fields(left):
            same(getattr(left, field.name), getattr(right, field.name))
    else:
        assert left == right


def there_and_back(value: Any) -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=frames.send, args=(ours, frames.pack(7, value)))
        sender.start()
        kind, header, data = frames.receive(theirs)
        sender.join()
    assert kind == 7
    return frames.unpack(type(value), header, data)


def test_a_frame_comes_back_as_it_was() -> None:
    same(there_and_back(example()), example())


def test_arrays_without_rows() -> None:
    same(there_and_back(example(0)), example(0))


def test_a_frame_larger_than_the_sockets_buffer() -> None:
    same(there_and_back(example(1_000_000)), example(1_000_000))


def test_arrays_are_ones_own() -> None:
    tokens = there_and_back(example()).tokens
    assert tokens.flags.writeable and tokens.flags.aligned and tokens.flags.owndata


def test_a_closed_connection_is_said_so() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(frames.Closed):
            frames.receive(theirs)
        with pytest.raises(frames.Closed):
            frames.send(theirs, frames.pack(1, None))


def test_half_a_frame_is_none() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        whole = b"".join(frames.pack(1, example()))
        ours.sendall(whole[:-1])
        ours.close()
        with pytest.raises(frames.Closed):
            frames.receive(theirs)
