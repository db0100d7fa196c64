import subprocess
from pathlib import Path

import pytest

from kernels import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("-O0", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi"))
    return tmp_path / "kernels"


def test_second_load_doesnt_build(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load()
    (library,) = cache.iterdir()  # no temporary file is left either
    built = library.stat().st_mtime_ns
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built again"))
    build.load()
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [built]


def test_changed_source_or_flags_build_anew(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    monkeypatch.setattr(build, "SOURCES", sources)
    for text, flags in (("int a;", build.FLAGS), ("int b;", build.FLAGS), ("int b;", (*build.FLAGS, "-O1"))):
        (sources / "one.cpp").write_text(text)
        monkeypatch.setattr(build, "FLAGS", flags)
        build.load()
    assert len(list(cache.iterdir())) == 3


def test_compiler_error_is_told_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cpp").write_text("not C++")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(build.BuildError, match=r"one\.cpp"):
        build.load()
    assert not list(cache.iterdir())


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
