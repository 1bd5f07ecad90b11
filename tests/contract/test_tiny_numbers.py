"""Numbers so small that they can only be a slip, in every field of what users send."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from optimus_contract.change import JobChange
from optimus_contract.job import JobSpec
from optimus_contract.people import ProjectLimits, ProjectQuota, UserLimits
from optimus_service.requests import adapter, checked

BASES: dict[type, dict[str, Any]] = {
    JobSpec: {"name": "a", "task": "m:f"},
    JobChange: {},
    ProjectQuota: {},
    ProjectLimits: {},
    UserLimits: {},
}
BESIDE: dict[str, dict[str, Any]] = {
    "convergence": {"max_steps": 5},
    "target_metric": {"name": "accuracy"},
    "elastic_batch": {"minimum": 1, "maximum": 2, "per_pass": 2},
}
"""What an object needs beside one number."""


def numbers(schema: dict[str, Any], found: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Any]:
    """The path of every number that is no integer, and its schema."""
    if "$ref" in found:
        found = schema["$defs"][found["$ref"].rpartition("/")[2]]
    for choice in (*found.get("anyOf", ()), *found.get("allOf", ())):
        for where, number in numbers(schema, choice, path):
            yield where, found | number
    for name, each in found.get("properties", {}).items():
        yield from numbers(schema, each, (*path, name))
    if found.get("type") == "number":
        yield path, found


def documents() -> Iterator[Any]:
    """Every number of every model that has a least value, two tiny ones each."""
    for model, base in BASES.items():
        schema = adapter(model).json_schema()
        for path, number in numbers(schema, schema):
            if number.keys().isdisjoint({"minimum", "exclusiveMinimum"}):
                continue  # a loss or a figure, which may have any value
            for value in (1e-320, 1e-12):
                document: Any = value
                for name, inner in reversed([*pairwise(path)]):
                    document = {inner: document, **BESIDE.get(name, {})}
                document = {**base, path[0]: document}
                yield pytest.param(model, document, path, id=f"{model.__name__}.{'.'.join(path)}-{value}")


@pytest.mark.parametrize(("model", "document", "path"), [*documents()])
def test_a_tiny_number_is_refused_by_its_field(model: type, document: dict[str, Any], path: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        checked(model, document)
    (error,) = [each for each in refused.value.errors() if each["loc"][: len(path)] == path]
    assert any(word in error["msg"] for word in ("greater", "at least")), error


@pytest.mark.parametrize(
    "fields",
    [
        {"convergence": {"max_epochs": 1e-9}},
        {"convergence": {"loss_decrease": {"below": 1e-6}}},
        {"workers": {"resources": {"cpu": 0.0}}},
        {"workers": {"resources": {"cpu": 0.001}}},
        {"stop_seconds": 0.0},
        {"hang_seconds": 0.1},
        {"compression": "topk", "compression_keep": 1e-6},
        {"convergence": {"target_loss": 0.0}},
    ],
)
def test_a_small_number_that_means_something_is_taken(fields: dict[str, Any]) -> None:
    checked(JobSpec, BASES[JobSpec] | fields)
