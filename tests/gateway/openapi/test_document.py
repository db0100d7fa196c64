"""The description itself; tests/e2e/test_openapi.py holds a gateway to it."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from gateway.openapi.document import FROM_GATEWAYS_ONLY, document
from gateway.openapi.examples import chat_examples, completion_examples
from replica.protocol.openai import ChatRequest, CompletionRequest, parse_chat, parse_completion

FOUND = document(["tiny"])
SCHEMAS = FOUND["components"]["schemas"]


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from refs(each)
    elif isinstance(value, list):
        for each in value:
            yield from refs(each)


def test_it_is_json_and_every_reference_leads_somewhere() -> None:
    assert orjson.loads(orjson.dumps(FOUND)) == FOUND
    for ref in refs(FOUND):
        target: Any = FOUND
        for part in ref.removeprefix("#/").split("/"):
            target = target[part]
        assert target


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_every_field_is_described_and_what_is_optional_may_be_null(model: type[Any]) -> None:
    schema = SCHEMAS[model.__name__]
    assert set(schema["properties"]) == set(model.model_fields) - set(FROM_GATEWAYS_ONLY)
    assert schema["additionalProperties"] is False
    for name, value in schema["properties"].items():
        assert name in schema["required"] or {"type": "null"} in value["anyOf"], name
    assert schema["properties"]["model"]["enum"] == ["tiny"]


def test_examples_are_requests_that_are_taken() -> None:
    for example in chat_examples("tiny").values():
        assert parse_chat(orjson.dumps(example["value"])).model == "tiny"
    for example in completion_examples("tiny").values():
        assert parse_completion(orjson.dumps(example["value"])).model == "tiny"


def test_every_operation_says_what_an_error_looks_like() -> None:
    for path, operations in FOUND["paths"].items():
        for operation in operations.values():
            errors = {status: value for status, value in operation["responses"].items() if status >= "400"}
            assert {"400", "404", "503"} <= set(errors), path
            assert all(value == {"$ref": "#/components/responses/Error"} for value in errors.values())


def test_without_a_model_there_are_no_examples() -> None:
    assert document([])["paths"]["/v1/models/{model}"]["get"]["parameters"][0]["name"] == "model"
