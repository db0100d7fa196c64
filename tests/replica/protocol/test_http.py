import json

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from replica.protocol.http import error_response, from_http_exception, json_response

REQUEST = make_mocked_request("POST", "/nowhere")


def said(response: web.Response) -> tuple[int, object]:
    assert response.content_type == "application/json" and isinstance(response.body, bytes)
    return response.status, json.loads(response.body)


def test_json_and_errors() -> None:
    assert said(json_response({"a": 1}, status=503)) == (503, {"a": 1})
    response = error_response(503, "busy", "unavailable", "n", "full", retry_after_s=2)
    error = {"message": "busy", "type": "unavailable", "param": "n", "code": "full"}
    assert said(response) == (503, {"error": error})
    assert response.headers["retry-after"] == "2"
    assert "retry-after" not in error_response(500, "broken", "server_error").headers


def test_an_exception_of_aiohttp_names_the_route_or_says_what_the_handler_said() -> None:
    for error, message in [
        (web.HTTPNotFound(), "Not Found: POST /nowhere"),
        (web.HTTPConflict(text="requests are running"), "requests are running"),
        (web.HTTPRequestEntityTooLarge(max_size=5, actual_size=9), "Maximum request body size 5 exceeded"),
    ]:
        status, body = said(from_http_exception(REQUEST, error))
        assert status == error.status and message in str(body)
