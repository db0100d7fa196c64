from pathlib import Path
from typing import Any

import pytest

from replica.model.config import ConfigFields
from replica.protocol.text import ModelFolderError


def fields_of(**values: Any) -> ConfigFields:
    return ConfigFields(Path("config.json"), values)


def test_null_is_absent_and_overrides_a_default() -> None:
    fields = fields_of(window=None, heads=3)
    assert fields.integer("window", 7) == 7
    assert fields.with_defaults({"window": 4096, "heads": 8}).integer("heads") == 3
    assert not fields.with_defaults({"window": 4096}).has("window")
    assert fields_of().with_defaults({"window": 4096}).integer("window") == 4096


@pytest.mark.parametrize("getter", ["integer", "number", "numbers", "text", "texts"])
def test_what_is_missing_is_named(getter: str) -> None:
    with pytest.raises(ModelFolderError, match=r"config\.json: x is missing"):
        getattr(fields_of(), getter)("x")


@pytest.mark.parametrize(
    ("getter", "value"),
    [
        ("integer", 1.5), ("integer", True), ("integer", "1"), ("number", "1"), ("number", False), ("numbers", 1),
        ("numbers", ["1"]), ("flag", 1), ("flag", "yes"), ("text", 1), ("texts", "a"), ("texts", [1]), ("section", []),
    ],
)  # fmt: skip
def test_a_wrong_type_is_named(getter: str, value: object) -> None:
    with pytest.raises(ModelFolderError, match=r"config\.json: x must be"):
        getattr(fields_of(x=value), getter)("x")
