"""Errors as the Anthropic API sends them: status, type, envelope. Source: docs.anthropic.com, "Errors"."""

from __future__ import annotations

from typing import Any

TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type of each status the proxy uses."""


class ApiError(Exception):
    """An answer to the client: HTTP `status` with the envelope of `type` and `message`.

    `retry_after` is in seconds; `retry` False tells the SDKs not to try again (`x-should-retry: false`), None leaves
    it to them.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str | None = None,
        retry_after: int | None = None,
        retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_ or TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        self.retry_after = retry_after
        self.retry = retry

    @property
    def headers(self) -> dict[str, str]:
        """Response headers besides content type and request id."""
        found: dict[str, str] = {}
        if self.retry_after is not None:
            found["retry-after"] = str(self.retry_after)
        if self.retry is not None:
            found["x-should-retry"] = "true" if self.retry else "false"
        return found

    def envelope(self, request_id: str) -> dict[str, Any]:
        """The JSON body; the same object is the data of a stream's `event: error`."""
        return {"type": "error", "error": {"type": self.type, "message": self.message}, "request_id": request_id}

    def openai(self) -> dict[str, Any]:
        """The JSON body as OpenAI's API has it."""
        return {"error": {"message": self.message, "type": self.type, "param": None, "code": self.status}}


class InvalidRequestError(ApiError):
    """The body is not a Messages request; `where` is the path of the wrong value, as `messages.0.content`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(400, f"{where}: {problem}" if where else problem)


class PromptTooLongError(ApiError):
    """The prompt does not fit the context window; clients compact on this very wording."""

    def __init__(self, tokens: int, maximum: int) -> None:
        super().__init__(400, f"prompt is too long: {tokens} tokens > {maximum} maximum")
        self.tokens = tokens
        self.maximum = maximum


class ProxyStoppingError(ApiError):
    """The proxy is being stopped, and its time to finish is over."""

    def __init__(self) -> None:
        super().__init__(529, "the proxy is stopping; try again", retry_after=2)
