import re
from pathlib import Path

from gateway.tenants.key_file import read_keys
from tests.processes import run_command


def new(*flags: str) -> tuple[int, str, str]:
    done = run_command("deploy.cli", "keys", "new", *flags)
    return done.returncode, done.stdout, done.stderr


def test_a_new_key_is_shown_once_and_the_file_knows_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    made = []
    for name in ("one", 'the "other"'):
        code, said, _ = new("--name", name, "--tenant", "alice", "--file", str(file))
        assert code == 0
        assert re.fullmatch(r"sk-ryokan-[A-Za-z0-9_-]{43}\n", said)
        made.append(said.strip())
    assert file.stat().st_mode & 0o777 == 0o600
    keys = read_keys(file)
    assert [found.key for key in made if (found := keys.find(key))] == ["one", 'the "other"']
    assert not any(key in file.read_text() for key in made)
    before = file.read_text()
    code, said, error = new("--name", "one", "--tenant", "alice", "--file", str(file))
    assert (code, said, error.count("\n")) == (1, "", 1)
    assert f"{file}: keys[0].name: two keys have the same" in error
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_file_its_lines_are_printed(tmp_path: Path) -> None:
    code, said, _ = new("--name", "a", "--tenant", "b")
    assert code == 0
    key, lines = said.split("\n\n")
    file = tmp_path / "keys.toml"
    file.write_text(f'salt_secret = "0123456789abcdef"\n{lines}')
    assert read_keys(file).find(key) is not None
