"""The API's description is whole: what each route takes, gives and refuses, with examples that fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from cluster.api.errors import ApiError
from tests.cluster.fakes import FakeGateway
from tests.cluster.office import shared_gateway

KEYLESS = {"/health", "/ready"}


def document() -> Any:
    return shared_gateway().app.openapi()


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


OPERATIONS = [pytest.param(op, id=f"{method} {path}") for method, path, op in operations()]


async def test_it_is_what_the_route_shows() -> None:
    gateway = await FakeGateway().open()
    assert (await gateway.call("GET", "/openapi.json")).json() == document()


def test_it_is_valid_openapi_of_version_3_1() -> None:
    described = document()
    assert described["openapi"].startswith("3.1.")
    for schema in schemas_in(described):
        jsonschema.Draft202012Validator.check_schema(schema)


def test_it_describes_the_bodies_that_we_read_ourselves() -> None:
    operation = document()["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["model", "messages"]
    number, null = schema["properties"]["temperature"]["anyOf"]
    assert (number["maximum"], null) == (2, {"type": "null"})
    assert "$ref" not in json.dumps(schema)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_it_says_which_tokens_the_headers_of_limits_are_of(path: str) -> None:
    headers = document()["paths"][path]["post"]["responses"]["200"]["headers"]
    for what in ("Limit", "Remaining", "Reset"):
        assert "whichever has the smaller share left" in headers[f"X-RateLimit-{what}-Tokens"]["description"]
        assert "share" not in headers[f"X-RateLimit-{what}-Requests"]["description"]


def test_it_says_which_scopes_see_everybody() -> None:
    body = document()["paths"]["/admin/v1/keys"]["post"]["requestBody"]["content"]["application/json"]
    assert (
        "`metrics` and `admin:read` see all tenants" in body["schema"]["properties"]["scopes"]["description"]
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_a_request_may_leave_out_may_be_null_and_other_fields_say_what_goes(path: str) -> None:
    media = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    fits = jsonschema.Draft202012Validator(media["schema"]).is_valid
    for name in media["schema"]["properties"]:
        assert fits({**media["example"], name: None}) is (name not in media["schema"]["required"]), name
    assert fits({**media["example"], "metadata": {"any": "thing"}, "tools": [], "response_format": None})
    assert not fits({**media["example"], "tools": [{}]})
    assert not fits({**media["example"], "unknown": None})


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_says_what_it_is_for(operation: Any) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]


@pytest.mark.parametrize(("method", "path", "operation"), [*operations()])
def test_all_but_two_say_that_they_need_a_key(method: str, path: str, operation: Any) -> None:
    if path in KEYLESS:
        assert "security" not in operation
        return
    assert operation["security"] == [{"ApiKey": []}]
    assert {"401", "403"} <= operation["responses"].keys()
    assert "WWW-Authenticate" in operation["responses"]["401"]["headers"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_answer_has_a_schema_unless_it_has_no_body(operation: Any) -> None:
    for status, response in operation["responses"].items():
        assert "X-Request-Id" in response["headers"]
        if status in ("204", "304"):
            assert "content" not in response
        else:
            assert all(media.keys() & {"schema", "itemSchema"} for media in response["content"].values())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_refusal_has_the_one_shape(operation: Any) -> None:
    for status, response in operation["responses"].items():
        if int(status) >= 400:
            schema = response["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Error"}
    assert "HTTPValidationError" not in json.dumps(operation)


def test_that_shape_is_what_errors_have() -> None:
    error = ApiError(404, "not_found", "There is none.", param="model").body()
    jsonschema.validate(error, document()["components"]["schemas"]["Error"])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_parameter_says_its_bounds_and_none_is_null(operation: Any) -> None:
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        assert "null" not in json.dumps(schema)
        if schema["type"] == "integer":
            assert {"minimum", "maximum"} <= schema.keys()
        elif parameter["name"] != "model":
            assert {"pattern", "maxLength", "format", "enum"} & schema.keys()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_body_is_closed_and_has_an_example_that_fits(operation: Any) -> None:
    if (body := operation.get("requestBody")) is None:
        return
    media = body["content"]["application/json"]
    assert body["required"] is True
    assert media["schema"]["additionalProperties"] is False
    jsonschema.validate(media["example"], media["schema"])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_example_of_an_answer_fits(operation: Any) -> None:
    for response in operation["responses"].values():
        for media in response.get("content", {}).values():
            if "example" in media:
                jsonschema.validate(media["example"], media["schema"])


@pytest.mark.parametrize(("method", "path", "operation"), [*operations()])
def test_one_resource_comes_with_its_version_and_conditions(method: str, path: str, operation: Any) -> None:
    if not path.startswith(("/admin/v1/tiers/", "/admin/v1/tenants/", "/admin/v1/keys/")):
        return
    if path.endswith("/rotate"):
        return
    condition = "If-None-Match" if method == "GET" else "If-Match"
    assert condition in [parameter["name"] for parameter in operation["parameters"]]
    assert ("304" if method == "GET" else "412") in operation["responses"]
    if method != "DELETE":
        assert "ETag" in operation["responses"]["200"]["headers"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_who_is_told_to_come_back_is_told_when(operation: Any) -> None:
    for status in ("429", "503"):
        if status in operation["responses"]:
            assert "Retry-After" in operation["responses"][status]["headers"]


def schemas_in(node: Any) -> Iterator[Any]:
    if isinstance(node, list):
        for child in node:
            yield from schemas_in(child)
    if isinstance(node, dict):
        for name, child in node.items():
            if name == "schema":
                yield child
            else:
                yield from schemas_in(child)
