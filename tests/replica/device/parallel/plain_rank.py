"""A follower that computes nothing: it notes what it is told, in a file, or does what a test wants of it."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from replica.device.parallel.follower import Role, Step, attach, follow


@dataclass(frozen=True, slots=True)
class Notes:
    folder: Path
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Errand:
    word: str
    numbers: NDArray[np.int32]


class BadNotes(Exception):
    pass


def build(settings: Notes, rank: int) -> Step[Errand]:
    if settings.fails:
        raise BadNotes("the folder is damp")

    def step(errand: Errand) -> None:
        if errand.word == "hang":
            time.sleep(600)
        name = f"{rank}-{errand.word}-{errand.numbers.tolist()}"
        (settings.folder / name).touch()

    return step


if __name__ == "__main__":
    sys.exit(follow(*attach(sys.argv[1:]), Role(Notes, Errand, build, (BadNotes,))))
