import subprocess
import sys
from pathlib import Path

import typer
from typer.testing import CliRunner

from loadtest.__main__ import compare_command


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(compare_command)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    return result.exit_code, result.output


def test_help_names_every_flag() -> None:
    code, text = run("--help")
    assert code == 0
    names = ("gateway", "policies", "agents", "cities", "turns", "output-tokens")
    for flag in (*names, "seed", "ramp-s", "rate", "rounds", "model", "out"):
        assert f"--{flag}" in text


def test_an_error_is_one_line_and_status_1(chatml_folder: Path, tmp_path: Path) -> None:
    code, text = run("--model", str(chatml_folder), "--gateway", "http://127.0.0.1:9", "--out", str(tmp_path / "out"))
    assert code == 1
    assert text.strip().count("\n") == 0 and "can't reach http://127.0.0.1:9" in text
    assert not (tmp_path / "out").exists()


def test_help_is_quick_and_nothing_imports_torch() -> None:
    heavy = "import sys, loadtest.__main__; assert not {'matplotlib', 'torch', 'aiohttp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", heavy], check=True)
    whole = "import sys, loadtest.compare, loadtest.page; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", whole], check=True)
