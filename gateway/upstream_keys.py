"""API keys that upstreams ask of us: one of its own for each URL, from a file, and one for all others.

    "http://host1:8000" = "sk-…"      # as in `upstream`

They are in no log, error or metric: no error quotes the file, not even a name in it, as key and URL may be mixed up.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.toml_place import toml_place
from gateway.upstream_urls import base_url

KEY_VARIABLE = "RYOKAN_UPSTREAM_KEY"
FILE_SETTING = "upstream_keys_file"
_KEY = re.compile(r"[!-~]+")


class UpstreamKeysError(ValueError):
    """The message holds no key."""


@dataclass(frozen=True, slots=True)
class UpstreamKeys:
    by_url: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By the URL in front of `/v1`."""
    of_others: str | None = field(default=None, repr=False)

    def headers(self, url: str) -> dict[str, str]:
        """What a request there has besides."""
        key = self.by_url.get(url, self.of_others)
        return {} if key is None else {"authorization": f"Bearer {key}"}


def load_upstream_keys(
    file: Path | None, upstreams: Iterable[str], environment: Mapping[str, str] = os.environ
) -> UpstreamKeys:
    """From the file, and of those that it doesn't name from RYOKAN_UPSTREAM_KEY. Raises UpstreamKeysError."""
    of_others = environment.get(KEY_VARIABLE, "").strip() or None
    if of_others is not None and not _KEY.fullmatch(of_others):
        raise UpstreamKeysError(f"{KEY_VARIABLE}: a key is printable ASCII without spaces")
    return UpstreamKeys({} if file is None else _read(file, [base_url(url) for url in upstreams]), of_others)


def _read(file: Path, upstreams: list[str]) -> dict[str, str]:
    where = f"the upstream keys file {file}"
    try:
        given = tomllib.loads(file.read_text())
    except OSError as error:
        raise UpstreamKeysError(f"{where}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UpstreamKeysError(f"{where}: {toml_place(error)}") from None
    found: dict[str, str] = {}
    for number, (written, key) in enumerate(given.items(), 1):
        url = base_url(written)
        if url not in upstreams:
            known = ", ".join(upstreams) or "none"
            raise UpstreamKeysError(f'{where}: entry {number} is not "URL" = "KEY" of an upstream; these are {known}')
        if url in found:
            raise UpstreamKeysError(f"{where}: entry {number} is of an upstream that has one already")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise UpstreamKeysError(f"{where}: entry {number}: a key is a string of printable ASCII without spaces")
        found[url] = key
    return found
