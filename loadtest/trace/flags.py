"""Flags of the commands that read traces. Imports nothing heavy by itself."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Loop(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


TracePath = Annotated[
    Path, typer.Option(help="JSON lines: Mooncake's format, sessions, or what a gateway wrote with --record.")
]
LoopName = Annotated[
    Loop | None,
    typer.Option(
        help="open: requests come when they came in the trace; closed: those of a session wait for its answers. "
        "Default: open where the trace has times of arrival."
    ),
]
Spread = Annotated[
    float,
    typer.Option(
        min=0,
        help="Seconds over which arrivals are spread by chance: for a clock that ticks so slowly (Mooncake's: 3).",
    ),
]
Scale = Annotated[
    int, typer.Option(min=1, help="Divide all lengths, as by 32; blocks get smaller, and their number stays.")
]
SessionPeriod = Annotated[
    float, typer.Option(min=1e-6, help="Mean seconds between the beginnings of sessions, where the trace has none.")
]
