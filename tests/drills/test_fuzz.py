"""Requests made up from the OpenAPI document, right ones and wrong ones: no 5xx, and every reply as
described."""

import pytest
from http_app import served
from hypothesis import HealthCheck, given, settings

from raypipe.models.kit import LocalKit
from raypipe.serving.access import ApiKeys, ServerConfig
from raypipe.serving.answerer import Answerer

pytestmark = pytest.mark.slow

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
# It loads this when first used, and pytest parses it then: beside other threads Python 3.11 may fail at that.
pytest.importorskip("schemathesis.specs.openapi.schemas", reason="schemathesis is not installed")
KEY = "a-key-to-be-fuzzed"
AUTH = {"authorization": f"Bearer {KEY}"}
# More is refused than a schema can say: keys that stand twice, NUL, integers of more than 64 bits, 1.0 for 1.
NOT_SAID = [schemathesis.checks.positive_data_acceptance]
ROUTES = [
    ("POST", "/v1/answer"),
    ("POST", "/v1/answer:batch"),
    ("POST", "/v1/retrieve"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/index"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{id}"),
    ("GET", "/readyz"),
]


@pytest.fixture(scope="module")
def described(filled):
    config = ServerConfig(ApiKeys.of([KEY]))
    app = served(Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri), config)
    return schemathesis.openapi.from_asgi("/openapi.json", app, headers=AUTH)


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=lambda x: x)
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda m: m.value)
@pytest.mark.parametrize("many", [3, pytest.param(30, marks=pytest.mark.drill)])
def test_whatever_is_sent_the_reply_is_one_that_the_document_names(described, method, path, mode, many):
    operation, seen = described[path][method], set()
    if mode.is_negative and not operation.body:
        pytest.skip("there is nothing to send wrongly")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=many, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def sent(case):
        reply = case.call(headers=AUTH)
        case.validate_response(reply, headers=AUTH, excluded_checks=NOT_SAID)
        seen.add(reply.status_code)

    sent()
    assert seen and max(seen) < 500
