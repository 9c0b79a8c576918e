"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

from typing import Any

from anchorstream import errors

_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.ConfigError, 400, "invalid_value"),
    (errors.InputError, 400, "invalid_value"),
    (errors.TemplateError, 400, "template_error"),
    (errors.MissingExtraError, 501, "not_installed"),
    (errors.OutOfMemoryError, 503, "out_of_memory"),
)
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    410: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """What a client is told.

    Args:
        status: HTTP's.
        message: for people.
        code: for programs.
        param: the field that is at fault, if it is one.
        retry_after: seconds after which it may try again.
    """

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's form."""
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to it."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def bad(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A request that cannot be carried out as it stands."""
    return ApiError(400, message, code=code, param=param)


def as_api_error(error: BaseException) -> ApiError:
    """Any error as a client may see it; what we did not foresee is not explained to strangers."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return ApiError(status, str(error), code=code, retry_after=5 if status == 503 else None)
    return ApiError(500, "the server failed; its log says more", code="internal_error")
