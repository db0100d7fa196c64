import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native import build
from native.build import BuildError, build_library

ROOT = Path(__file__).parents[2]
FLAGS = ("-O0", "-shared", "-fPIC")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path))
    return tmp_path / "some"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "one.cpp").write_text('#include "one.h"\n')
    (folder / "one.h").write_text("int a;\n")
    return folder


def _all_but_lock(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.name != "build.lock"]


def test_the_second_time_nothing_is_built(cache: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_library("some", sources, FLAGS)
    assert _all_but_lock(cache) == [path]  # no temporary file is left either
    built = path.stat().st_mtime_ns
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built again"))
    assert build_library("some", sources, FLAGS) == path
    assert path.stat().st_mtime_ns == built


def test_a_changed_source_header_or_flag_builds_anew(cache: Path, sources: Path) -> None:
    build_library("some", sources, FLAGS)
    for name in ("one.cpp", "one.h"):
        (sources / name).write_text((sources / name).read_text() + "\n")
        build_library("some", sources, FLAGS)
    build_library("some", sources, (*FLAGS, "-O1"))
    assert len(_all_but_lock(cache)) == 4


def test_a_compiler_error_is_told_and_leaves_nothing(cache: Path, sources: Path) -> None:
    (sources / "one.cpp").write_text("not C++")
    with pytest.raises(BuildError, match=r"one\.cpp"):
        build_library("some", sources, FLAGS)
    assert not _all_but_lock(cache)


def test_processes_that_start_at_once_build_once(cache: Path, sources: Path, tmp_path: Path) -> None:
    compiler, calls = tmp_path / "compiler", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {shutil.which("c++")} "$@"\n')
    compiler.chmod(0o755)
    code = f"import pathlib, native.build as b; b.build_library('some', pathlib.Path({str(sources)!r}), {FLAGS!r})"
    environment = {**os.environ, "CXX": str(compiler)}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert sum("-shared" in line for line in calls.read_text().splitlines()) == 1
    assert len(_all_but_lock(cache)) == 1


def test_a_missing_compiler_is_a_build_error(cache: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="no-such-compiler"):
        build_library("some", sources, FLAGS)


def test_a_timeout_is_a_build_error(cache: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("c++", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(BuildError):
        build_library("some", sources, FLAGS)
