import traceback
from pathlib import Path

import pytest

from gateway.tenants.caller import Limits
from gateway.tenants.key_file import KeyFileError, digest_of, read_keys, tenant_salt

SECRET = "salt-secret-0123456789"
KEY = "sk-ryokan-secret-key-of-alice"


def key(name: str = "laptop", tenant: str = "alice", secret: str = KEY, more: str = "") -> str:
    return f'[[keys]]\nname = "{name}"\ntenant = "{tenant}"\nsha256 = "{digest_of(secret).hex()}"\n{more}\n'


def write(folder: Path, *parts: str, secret: str = SECRET) -> Path:
    path = folder / "keys.toml"
    path.write_text(f'salt_secret = "{secret}"\n' + "".join(parts))
    return path


def test_a_caller_is_found_by_the_key_and_by_nothing_else(tmp_path: Path) -> None:
    keys = read_keys(write(tmp_path, key(), key("server", "bob", "another")))
    found = keys.find(KEY)
    assert found is not None and (found.key, found.tenant, found.chooses_salt) == ("laptop", "alice", False)
    assert found.salt == tenant_salt(SECRET.encode(), "alice")
    for wrong in ("", KEY[:-1], KEY + "x", digest_of(KEY).hex(), "laptop", "ключ", "\udcff"):
        assert keys.find(wrong) is None
    assert str(keys) == "2 keys of 2 tenants"
    assert digest_of(KEY).hex() not in repr(keys)


def test_keys_of_a_tenant_share_a_salt_and_tenants_don_t(tmp_path: Path) -> None:
    path = write(tmp_path, key(), key("phone", secret="b"), key("other", "bob", "c"))
    found = [read_keys(path).find(secret) for secret in (KEY, "b", "c")]
    salts = [caller.salt for caller in found if caller]
    assert salts[0] == salts[1] != salts[2]
    assert {caller.salt for caller in found if caller} != {None}
    assert read_keys(path, isolated=False).find(KEY).salt is None  # type: ignore[union-attr]
    other = read_keys(write(tmp_path, key(), secret="another-secret-0123")).find(KEY)
    assert other is not None and other.salt != salts[0]


def test_the_narrower_of_key_and_tenant_counts(tmp_path: Path) -> None:
    grant = "models = ['a', 'b']\npriority_ceiling = -5\nconcurrent_requests = 2"
    tenant = "[tenants.alice]\nmodels = ['b', 'c']\npriority_ceiling = 0\ntokens_per_minute = 10_000\n"
    found = read_keys(write(tmp_path, key(more=grant), tenant)).find(KEY)
    assert found is not None
    assert (found.models, found.priority_ceiling) == (frozenset("b"), 0)
    assert found.limits == {
        "tenant alice": Limits(tokens_per_minute=10_000),
        "key laptop": Limits(concurrent_requests=2),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "salt_secret: Field required"),
        ('salt_secret = "0123456789abcdef"\n', "keys: Field required"),
        (f'salt_secret = "short"\n{key()}', "salt_secret: String should have at least 16"),
        (f'salt_secret = "{SECRET}"\n{key()}colour = "SECRET"', r"keys\[0\].colour: Extra inputs"),
        (
            f'salt_secret = "{SECRET}"\n{key()}requests_per_minute = 0',
            r"keys\[0\].requests_per_minute: Input should be",
        ),
        (f'salt_secret = "{SECRET}"\n{key()}{key("b")}', r"keys\[0\].sha256: two keys have the same"),
        (f'salt_secret = "{SECRET}"\n{key()}{key(secret="x")}', r"keys\[0\].name: two keys have the same"),
        (f'salt_secret = "{SECRET}"\n{key()}[tenants.carol]', "tenants.carol: no key has this tenant"),
        (f'salt_secret = "{SECRET}"\n[[keys]]\nname="SECRET\ntenant=1', r"it is no TOML \(at line"),
        (
            f'salt_secret = "{SECRET}"\n[[keys]]\nname="a"\ntenant="b"\nsha256="SECRET"',
            r"keys\[0\].sha256: String should",
        ),
    ],
)
def test_f11_a_bad_file_names_the_field_and_holds_back_what_it_says(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=said) as refused:
        read_keys(path)
    assert str(path) in str(refused.value)
    assert "SECRET" not in str(refused.value) and SECRET not in str(refused.value)
    assert "SECRET" not in "".join(traceback.format_exception(refused.value))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"none\.toml: No such file"):
        read_keys(tmp_path / "none.toml")
