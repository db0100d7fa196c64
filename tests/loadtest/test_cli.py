import subprocess
import sys
from pathlib import Path

import pytest
import typer

from loadtest.cli import run_compare
from loadtest.compare import CompareOptions


def test_an_error_is_one_line_and_status_1(
    chatml_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        run_compare(CompareOptions("http://127.0.0.1:9", chatml_folder, tmp_path / "out"))
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and "can't reach http://127.0.0.1:9" in said
    assert not (tmp_path / "out").exists()


def test_flags_are_quick_to_import_and_nothing_imports_torch() -> None:
    light = "import sys, loadtest.cli; assert not {'matplotlib', 'torch', 'aiohttp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", light], check=True)
    whole = "import sys, loadtest.compare, loadtest.page; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", whole], check=True)
