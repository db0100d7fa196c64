"""The key that whoever changes a running gateway must show."""

import hmac
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from gateway.config import ConfigError
from gateway.errors import NotAuthorised, NotLoopback

KEY_VARIABLE = "RYOKAN_ADMIN_KEY"
KEY_MIN_BYTES = 16


def load_admin_key(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """From the file, else from RYOKAN_ADMIN_KEY, else none. Raises ConfigError, whose message doesn't hold it."""
    if file is None:
        key, what = environment.get(KEY_VARIABLE, "").strip(), KEY_VARIABLE
        if not key:
            return None
    else:
        try:
            key, what = file.read_text().strip(), f"the admin key file {file}"
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the admin key file {file} can't be read: {error}") from error
    if len(key.encode()) < KEY_MIN_BYTES:
        raise ConfigError(f"{what}: the key has less than {KEY_MIN_BYTES} characters")
    return key


def authorise(authorization: str, remote: str | None, key: str | None) -> None:
    """With a key, whoever shows it as `Bearer`, from anywhere; without one, whoever is on this machine.

    Raises NotAuthorised or NotLoopback.
    """
    if key is not None:
        scheme, _, given = authorization.partition(" ")
        # NOTE: as bytes, since compare_digest refuses text beyond ASCII.
        same = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), key.encode())
        if scheme.lower() != "bearer" or not same:
            raise NotAuthorised("this needs the admin key: Authorization: Bearer KEY")
        return
    try:
        loopback = ipaddress.ip_address(remote or "").is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise NotLoopback("without an admin key this can be done from the gateway's own machine only")
