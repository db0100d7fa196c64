from pathlib import Path

import pytest

from kernels import build
from native.build import BuildError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("-O0", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi"))
    return tmp_path / "kernels"


def test_the_sources_build_and_load(cache: Path) -> None:
    assert build.load().paged_attention
    assert [path.suffix for path in cache.iterdir() if path.name != "build.lock"] == [".so"]


def test_a_library_that_does_not_load_is_a_build_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cpp").write_text("int nowhere(); int one() { return nowhere(); }")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(BuildError, match="nowhere"):
        build.load()
