import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("-O0", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi"))
    return tmp_path / "kernels"


def _all_but_lock(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.name != "build.lock"]


def test_second_load_doesnt_build(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load()
    (library,) = _all_but_lock(cache)  # no temporary file is left either
    built = library.stat().st_mtime_ns
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built again"))
    build.load()
    assert [path.stat().st_mtime_ns for path in _all_but_lock(cache)] == [built]


def test_changed_source_or_flags_build_anew(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    monkeypatch.setattr(build, "SOURCES", sources)
    for text, flags in (("int a;", build.FLAGS), ("int b;", build.FLAGS), ("int b;", (*build.FLAGS, "-O1"))):
        (sources / "one.cpp").write_text(text)
        monkeypatch.setattr(build, "FLAGS", flags)
        build.load()
    assert len(_all_but_lock(cache)) == 3


def test_compiler_error_is_told_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cpp").write_text("not C++")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(build.BuildError, match=r"one\.cpp"):
        build.load()
    assert not _all_but_lock(cache)


def test_processes_that_start_at_once_build_once(cache: Path, tmp_path: Path) -> None:
    compiler, calls = tmp_path / "compiler", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {shutil.which("c++")} "$@" -O0\n')
    compiler.chmod(0o755)
    command = [sys.executable, "-c", "from kernels import build; build.load()"]
    environment = {**os.environ, "CXX": str(compiler)}
    processes = [subprocess.Popen(command, env=environment, cwd=build.SOURCES.parents[1]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert sum("-shared" in line for line in calls.read_text().splitlines()) == 1
    assert len(_all_but_lock(cache)) == 1


def test_missing_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no-such-compiler"):
        build.load()


def test_timeout_is_a_build_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("c++", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(build.BuildError):
        build.load()
