"""A rank other than 0: a process that builds its part of the model and takes each step that rank 0 takes.

It decides nothing, so what has to be the same on all ranks is so by construction: the same build, in the same order (a
CUDA graph with a collective in it must be captured, and replayed, by all ranks at the same turn), then the same plans
in the same order. It samples as rank 0 does, from the same logits, so the tokens that a later plan takes from the
device are there on each.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from replica.device.parallel import frames
from replica.device.parallel.group import FAILED, READY, RUN, START, STOP

_LOG = logging.getLogger(__name__)

S = TypeVar("S")
P = TypeVar("P")
Step = Callable[[P], object]


@dataclass(frozen=True, slots=True)
class Role(Generic[S, P]):
    """What follows: its settings, as START carries them, how it is built, and what a step is."""

    settings: type[S]
    plan: type[P]
    build: Callable[[S, int], Step[P]]
    """Of the settings and the rank."""
    failures: tuple[type[Exception], ...]
    """That need no traceback: rank 0 is told."""


def follow(link: socket.socket, rank: int, role: Role[S, P]) -> int:
    """Until rank 0 says stop or is gone. Returns the exit code."""
    try:
        kind, header, data = frames.receive(link)
        assert kind == START
        step = role.build(frames.unpack(role.settings, header, data), rank)
        frames.send(link, frames.pack(READY, None))
        while True:
            kind, header, data = frames.receive(link)
            if kind == STOP:
                return 0
            assert kind == RUN
            step(frames.unpack(role.plan, header, data))
    except frames.Closed:
        _LOG.info("rank 0 is gone")
        return 1
    except role.failures as error:
        frames.send(link, frames.pack(FAILED, frames.Text(f"{type(error).__name__}: {error}")))
        return 1


def attach(arguments: list[str]) -> tuple[socket.socket, int]:
    """The connection to rank 0, and which rank this is. Given are the connection's descriptor, rank 0's process id and
    the rank."""
    handle, parent, rank = (int(argument) for argument in arguments)
    die_with(parent)
    # A Ctrl-C or a supervisor's SIGTERM reaches all processes: rank 0 first answers what is in flight.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return socket.socket(fileno=handle), rank


def die_with(parent: int) -> None:
    """By the kernel's hand where it can (Linux), so also in a collective that waits for the dead."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it died before we asked
