"""The OpenAPI document has every route and field, each with its meaning and an example."""

import json

import jsonschema
import pytest
from http_app import OPEN, ask, send

from raypipe.models.kit import LocalKit
from raypipe.serving.answerer import Answerer
from raypipe.serving.http import create_app
from raypipe.serving.http.openapi import openapi_document

DOCUMENT = openapi_document(create_app(None, OPEN))
OPERATIONS = [
    (path, method, o) for path, methods in DOCUMENT["paths"].items() for method, o in methods.items()
]
SCHEMAS = DOCUMENT["components"]["schemas"]


class Keeps:
    """A capture that takes all feedback and captures nothing."""

    def choose(self, asker):
        return None

    def keep(self, request, result):
        return result

    async def feedback(self, asker, answer_id, verdict, text):
        return None


@pytest.fixture(scope="module")
def app(filled):
    online = Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri)
    return create_app(online, OPEN, capture=Keeps())


def conforms(value, schema):
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.validate(value, whole, cls=jsonschema.Draft202012Validator)


@pytest.mark.slow
def test_it_has_every_route_of_the_app_but_the_page(app):
    routes = {r.path for r in app.routes}
    assert set(DOCUMENT["paths"]) == routes - {"/"}
    [reply] = send(app, ("GET", "/openapi.json", {}))
    assert reply.json() == json.loads(json.dumps(DOCUMENT))


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=[o[0] for o in OPERATIONS])
def test_a_route_is_described(path, method, operation):
    bodies = [operation["requestBody"]] if "requestBody" in operation else []
    for said in (operation, *operation["responses"].values(), *bodies, *operation.get("parameters", ())):
        assert said["description"]
    assert operation["summary"]


def example_of(schema):
    """A value of a schema, made of the examples of its fields."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return example_of(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0])
    if schema.get("type") == "array":
        return [example_of(schema["items"])]
    return {name: example_of(field) for name, field in schema["properties"].items()}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_says_what_it_is_and_what_each_of_its_fields_means_with_an_example(name):
    schema = SCHEMAS[name]
    assert schema["description"]
    conforms(example_of(schema), schema)
    for field, said in schema["properties"].items():
        assert said["description"][-1] == ".", field
        named = json.dumps(said)
        assert "$ref" in named or said["examples"], f"{name}.{field}: expected an example"
        for example in said.get("examples", ()):
            conforms(example, said)


@pytest.mark.slow
def test_the_example_of_every_request_is_answered_as_its_schema_says(app):
    for path, method, operation in OPERATIONS:
        if method == "get":
            [reply] = send(app, ("GET", path.replace("{id}", "raypipe"), {}))
        else:
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            reply = ask(app, example_of(body), path)
        assert reply.status_code == 200, (path, reply.text)
        conforms(reply.json(), operation["responses"]["200"]["content"]["application/json"]["schema"])
