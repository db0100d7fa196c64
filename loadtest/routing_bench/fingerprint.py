"""Which source files a run depends on, so that a change of one policy leaves the others' results as they are."""

import ast
import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

OURS = ("gateway", "replica", "loadtest")


def sources(module: str, without: Iterable[str] = ()) -> dict[str, Path]:
    """The module and all of ours that it imports, at whatever remove, but not by way of those `without`."""
    skipped = set(without)
    found: dict[str, Path] = {}
    ahead = [module]
    while ahead:
        name = ahead.pop()
        if name in found or name in skipped:
            continue
        path = _path(name)
        if path is not None:
            found[name] = path
            ahead += _imports(path)
    return found


def fingerprint(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _path(name: str) -> Path | None:
    """None for what is no module, but a name in one."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _imports(path: Path) -> list[str]:
    """With `from a import b` both `a` and `a.b`, which may be a module too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] in OURS]
