from array import array
from ctypes import PyDLL
from pathlib import Path

import pytest

from native.build import build_library
from native.call import with_block

SOURCE = """
struct Block { const double* values; long count; double factor; };
extern "C" long weighed(const Block* block) {
    double sum = 0.0;
    for (long i = 0; i < block->count; ++i) sum += block->values[i];
    return long(block->factor * sum);
}
"""


def test_arguments_come_as_they_were_given_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "weighed.cpp").write_text(SOURCE)
    library = PyDLL(str(build_library("weighed", folder, ("-O1", "-shared", "-fPIC"))))
    weighed = with_block(library.weighed, "Qqd")
    values = array("d", (1.0, 2.0, 1 << 40))
    assert weighed(*values.buffer_info(), 2) == 2 * (3 + (1 << 40))
    assert weighed(values.buffer_info()[0], 2, -1.5) == -4
    assert weighed(0, 0, 1.0) == 0
