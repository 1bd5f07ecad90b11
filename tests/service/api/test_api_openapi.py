"""The OpenAPI document tells the truth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jsonschema
import pytest
from tests.service.api.api_harness import Api, job_spec, on_sqlite, problem

from optimus_contract.job import JobSpec
from optimus_contract.membership import MembershipReport
from optimus_contract.message import Message
from optimus_contract.people import NewToken, ProjectQuota, UserRights
from optimus_contract.result import JobProfile, JobResult
from optimus_contract.telemetry import Telemetry
from optimus_service.api.http import examples
from optimus_service.requests import checked

pytestmark = on_sqlite
TOKEN = "a token of sixteen or more"
Serve = Callable[..., AbstractContextManager[Api]]

ALL_EXAMPLES: list[tuple[type[Message], examples.Examples]] = [
    (JobSpec, examples.JOB_SPECS),
    (Telemetry, examples.TELEMETRY),
    (MembershipReport, examples.MEMBERSHIPS),
    (JobProfile, examples.PROFILES),
    (JobResult, examples.RESULTS),
    (ProjectQuota, examples.QUOTAS),
    (UserRights, examples.USERS),
    (NewToken, examples.TOKENS),
]


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    answer = api.get("/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    names = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert names <= set(document["components"]["schemas"])
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_every_operation_is_described_with_its_errors(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        assert operation["description"], name
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert set(answer["content"]) == {"application/problem+json"}, name
        assert {"422", "500", "503"} <= set(operation["responses"]), name


def test_every_body_has_examples_and_its_own_errors(document: dict[str, Any]) -> None:
    with_body = {name: operation for name, operation in operations(document) if "requestBody" in operation}
    assert len(with_body) == 21
    for name, operation in with_body.items():
        assert operation["requestBody"]["content"]["application/json"]["examples"], name
        assert {"400", "413", "415"} <= set(operation["responses"]), name


def test_every_body_refuses_unknown_fields_at_every_depth(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    bodies = [operation["requestBody"] for _, operation in operations(document) if "requestBody" in operation]
    waiting, seen = list(references(bodies)), set[str]()
    while waiting:
        name = waiting.pop().removeprefix("#/components/schemas/")
        if name not in seen:
            seen.add(name)
            waiting += references(schemas[name])
    objects = {name for name in seen if "properties" in schemas[name]}
    assert len(objects) > len(bodies), "messages inside of messages as well"
    assert {name for name in objects if schemas[name].get("additionalProperties") is not False} == set()


def test_every_operation_names_the_token_that_it_needs(serving: Serve) -> None:
    with serving(token=TOKEN) as api:
        document = api.get("/openapi.json", token=TOKEN).json()
    needed = {name: operation.get("security") for name, operation in operations(document)}
    assert needed.pop("GET /healthz") is None
    assert needed.pop("GET /readyz") is None
    assert needed.pop("GET /v1/sign-in") is None
    assert needed.pop("POST /v1/sso/device") is None
    assert needed.pop("POST /v1/sso/device/token") is None
    of_jobs = {name for name, security in needed.items() if security == [{"job": []}]}
    assert of_jobs == {
        f"{method} /v1/jobs/{{job_id}}/{what}"
        for method, what in [
            ("GET", "membership"),
            ("POST", "membership"),
            ("PUT", "profile"),
            ("PUT", "network"),
            ("PUT", "learning-rates"),
            ("POST", "telemetry"),
            ("POST", "result"),
        ]
    }
    assert all(security == [{"user": []}] for name, security in needed.items() if name not in of_jobs)


def test_a_service_without_a_token_does_not_ask_users_for_one(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        needs = operation.get("security")
        assert needs in (None, [{"job": []}]), name
        assert ("401" in operation["responses"]) == (needs is not None), name


def test_paths_with_a_name_may_be_paths_of_nothing(api: Api, document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        method, path = name.split(" ", 1)
        if "{" in path:
            assert "404" in operation["responses"], name
            assert api.call(method, re.sub("{[a-z_]+}", "a%05", path)).status_code == 404, name


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from schemas(part)
    elif isinstance(value, list):
        for part in value:
            yield from schemas(part)


def test_bounds_of_integers_are_the_integers_that_are_enforced(api: Api, document: dict[str, Any]) -> None:
    bounds = [
        schema[word]
        for schema in schemas(document)
        if schema.get("type") == "integer"
        for word in ("minimum", "maximum")
        if word in schema
    ]
    assert bounds
    assert {type(bound) for bound in bounds} == {int}
    of_sizes = document["components"]["schemas"]["ProjectQuota-Input"]["properties"]["memory_bytes"]["anyOf"]
    most = next(each["maximum"] for each in of_sizes if each.get("type") == "integer")
    assert api.call("PUT", "/v1/projects/a", json={"memory_bytes": most}).status_code == 201
    problem(api.call("PUT", "/v1/projects/a", json={"memory_bytes": most + 1}), 422)


def test_the_document_says_what_may_be_written_as_text(document: dict[str, Any]) -> None:
    properties = {name: schema.get("properties", {}) for name, schema in document["components"]["schemas"].items()}
    for body, field, text in (
        ("TaskResources-Input", "memory_bytes", "512Mi"),
        ("ProjectQuota-Input", "memory_bytes", " 1.5 GiB "),
        ("Sample", "loss", "NaN"),
        ("JobResult-Input", "final_loss", "-Infinity"),
    ):
        schema = {**properties[body][field], "components": document["components"]}
        jsonschema.validate(text, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate("much", schema)


def test_bodies_hold_no_text_that_databases_cannot_and_the_document_says_so(api: Api, document: dict[str, Any]) -> None:
    spec = document["components"]["schemas"]["JobSpec-Input"]["properties"]
    for schema in (spec["task_args"]["propertyNames"], spec["environment"]["additionalProperties"]):
        assert not re.search(schema["pattern"], "a\0")
        assert re.search(schema["pattern"], "a\n")
    of_types = document["components"]["schemas"]["ProjectQuota-Input"]["properties"]["gpus"]
    jsonschema.validate({"a100": 8}, of_types)
    for wrong_type in ("a 100", "a" * 64):
        problem(api.call("PUT", "/v1/projects/a", json={"gpus": {wrong_type: 8}}), 422)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({wrong_type: 8}, of_types)
    for wrong in ({"a\0": 1}, {"a": "\0"}):
        problem(api.post("/v1/jobs", json=job_spec(task_args=wrong)), 422)


def test_open_objects_hold_such_text_at_no_depth(api: Api, document: dict[str, Any]) -> None:
    layers = document["components"]["schemas"]["Network"]["properties"]["layers"]
    of_layer = {**layers["items"], "components": document["components"]}
    jsonschema.validate({"a": [1, {"b": None, "c": [0.5, True]}]}, of_layer)
    job_id = api.submit()
    for wrong in ({"a": [{"b\0": 1}]}, {"a": {"b": ["\0"]}}):
        body = {"format": "optimus-network/1", "layers": [wrong]}
        assert "NUL" in problem(api.as_task("PUT", job_id, "network", json=body), 422)["detail"]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, of_layer)


def test_a_moment_is_a_date_and_time(api: Api) -> None:
    assert api.get("/v1/trace", params={"since": "2026-11-01T00:00:00Z"}).status_code == 200
    problem(api.get("/v1/trace", params={"since": "0.5"}), 422)


@pytest.mark.parametrize(("body", "given"), ALL_EXAMPLES, ids=lambda value: getattr(value, "__name__", ""))
def test_examples_are_accepted_bodies(body: type[Message], given: examples.Examples, database_url: str) -> None:
    for example in given.values():
        checked(body, example["value"])


def test_the_examples_of_a_job_are_accepted_by_the_service(api: Api) -> None:
    for example in examples.JOB_SPECS.values():
        assert api.post("/v1/jobs", json=example["value"]).status_code == 201
    job_id = api.submit()
    for example in examples.MEMBERSHIPS.values():
        assert api.as_task("POST", job_id, "membership", json=example["value"]).status_code == 204
    for example in examples.TELEMETRY.values():
        answer = api.as_task("POST", job_id, "telemetry", json=example["value"])
        told = example["value"].get("samples", example["value"].get("columns", {}).get("step", ()))
        assert answer.json()["accepted"] == len(told)


def test_the_page_for_people_is_open_and_asks_nobody_else(api: Api) -> None:
    answer = api.get("/docs", token="")
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert re.findall(r'(?:src|href)="(?!/)', answer.text) == []
