"""Requests made up from the server's own description of itself."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from helpers.live_server import LiveServer

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def described(small: LiveServer) -> Any:
    return schemathesis.openapi.from_url(f"{small.url}/openapi.json")


PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/{session_id}"),
    ("DELETE", "/v1/sessions/{session_id}"),
    ("POST", "/v1/sessions/{session_id}/fork"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model_id}"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_no_request_breaks_the_server(described: Any, method: str, path: str) -> None:
    operation = described[path][method]

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        if isinstance(case.body, dict):
            for name in ("max_tokens", "max_completion_tokens"):
                if isinstance(case.body.get(name), int) and case.body[name] > 3:
                    case.body[name] = 3  # it is not the machine's patience that is tested
            case.body.pop("ignore_eos", None)
        case.validate_response(case.call(timeout=30), checks=CHECKS)

    run()


def test_every_address_is_tried(described: Any) -> None:
    found = {(result.ok().method.upper(), result.ok().path) for result in described.get_all_operations()}
    assert found == set(PATHS)
