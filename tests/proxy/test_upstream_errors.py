"""The upstream's error bodies, as clients are to understand them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.http.responses import ApiError, PromptTooLongError
from specdash.proxy.upstream.upstream import api_error, stream_error


def said(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


class TestPromptTooLong:
    def test_llama_cpp_names_both_numbers(self) -> None:
        message = "request (36014 tokens) exceeds the available context size (4096 tokens), try increasing it"
        body = said(message, code=400, type="exceed_context_size_error", n_prompt_tokens=36014, n_ctx=4096)
        error = api_error(400, body)
        assert isinstance(error, PromptTooLongError)
        assert error.message == "prompt is too long: 36014 tokens > 4096 maximum"
        assert (error.status, error.type) == (400, "invalid_request_error")

    @pytest.mark.parametrize(
        "message",
        [
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            "input (5000 tokens) is larger than the max context size (4096 tokens). skipping",
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        ],
    )
    @pytest.mark.parametrize("status", [400, 500])
    def test_without_its_numbers_the_wording_that_clients_compact_on_remains(self, message: str, status: int) -> None:
        error = api_error(status, said(message))
        assert (error.status, error.message) == (400, f"prompt is too long: {message}")


class TestStatus:
    @pytest.mark.parametrize(
        ("code", "status"), [(503, 529), (400, 400), ("server_error", 500), (None, 500), (12, 500)]
    )
    def test_an_error_inside_a_stream_has_its_code_for_a_status(self, code: object, status: int) -> None:
        assert stream_error({"code": code, "message": "x"}).status == status

    @pytest.mark.parametrize(
        ("status", "body", "expected", "kind"),
        [
            (503, said("Loading model", code=503, type="unavailable_error"), 529, "overloaded_error"),
            (503, b"", 529, "overloaded_error"),
            (401, said("Invalid API Key", type="authentication_error"), 502, "api_error"),
            (403, b"{}", 502, "api_error"),
            (404, said("File Not Found", type="not_found_error"), 502, "api_error"),
            (429, said("slow down"), 429, "rate_limit_error"),
            (413, b"", 413, "request_too_large"),
            (400, said("'messages' is required"), 400, "invalid_request_error"),
            (422, said("bad"), 400, "invalid_request_error"),
            (500, said("image input is not supported - hint: you may need to provide the mmproj"), 400, None),
            (500, said("Value is not callable: null at row 1, jinja template"), 400, None),
            (500, said("something broke"), 500, "api_error"),
            (502, b"<html><body><h1>502 Bad Gateway</h1></body></html>", 500, "api_error"),
            (301, b"", 502, "api_error"),
        ],
    )
    def test_maps_to_what_clients_act_on(self, status: int, body: bytes, expected: int, kind: str | None) -> None:
        error = api_error(status, body)
        assert error.status == expected
        assert kind is None or error.type == kind

    def test_a_refused_key_is_the_operators_and_trying_again_does_not_help(self) -> None:
        error = api_error(401, said("Invalid API Key"))
        assert "PROXY_UPSTREAM_API_KEY" in error.message
        assert error.retry is False


@given(st.integers(300, 599), st.one_of(st.binary(max_size=200), st.text(max_size=50).map(str.encode)))
def test_any_body_is_an_error_with_words(status: int, body: bytes) -> None:
    error = api_error(status, body)
    assert isinstance(error, ApiError)
    assert error.status >= 400
    assert error.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["error", "message", "type", "code", "n_ctx", "n_prompt_tokens"]), inner)
        ),
        max_leaves=6,
    )
)
def test_any_json_is_an_error_with_words(value: object) -> None:
    assert api_error(400, json.dumps(value).encode()).message
