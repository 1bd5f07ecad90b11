"""Messages: what requests may hold, and that whatever was written is read again."""

from __future__ import annotations

import gc
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from optimus_contract.codec import field_types, read, write
from optimus_contract.job import Convergence, JobSpec, TaskDemand
from optimus_contract.membership import Limits, WantedMembership
from optimus_contract.people import ProjectQuota
from optimus_contract.telemetry import Sample, Telemetry, Usage
from optimus_service.requests import adapter, checked

SMALLEST = {"name": "a", "task": "m:f"}
SAMPLE = {
    "membership_epoch": 1,
    "rank": 0,
    "sequence": 0,
    "workers": 1,
    "servers": 1,
    "at": 1000.0,
    "step": 5,
    "data_epoch": 0.5,
    "loss": 0.25,
    "n_examples": 32,
    "seconds": 0.1,
}
values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-3, 10**6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
likely = values | st.sampled_from(["sync", "async", "ps", "allreduce", "2Gi", {"min": 1, "max": 4}, {"max_epochs": 3}])


@given(st.dictionaries(st.sampled_from(sorted(field_types(JobSpec))), likely, max_size=4))
def test_what_a_request_may_say_is_read_the_same_without_its_rules(fields: dict[str, Any]) -> None:
    document = SMALLEST | fields
    try:
        accepted = checked(JobSpec, document)
    except ValidationError:
        return
    assert read(JobSpec, write(accepted)) == accepted
    assert checked(JobSpec, write(accepted)) == accepted
    assert read(JobSpec, document | {"a_field_of_the_next_release": 1}) == accepted


@given(st.dictionaries(st.sampled_from(sorted(field_types(JobSpec))), values))
def test_any_object_with_a_name_and_a_task_is_read(fields: dict[str, Any]) -> None:
    found = read(JobSpec, fields, name="a", task="m:f")
    assert json.loads(json.dumps(write(found), allow_nan=False))["name"] == found.name


def test_a_request_without_a_field_has_its_default() -> None:
    found = checked(JobSpec, SMALLEST)
    assert found == JobSpec(name="a", task="m:f")
    assert (found.workers, found.convergence.max_epochs) == (TaskDemand(min=1, max=16), 100)


@pytest.mark.parametrize("read_or_check", [read, checked])
def test_an_allreduce_job_need_not_say_that_it_has_no_servers(read_or_check: Any) -> None:
    found = read_or_check(JobSpec, SMALLEST | {"architecture": "allreduce"})
    assert (found.servers.min, found.servers.max) == (0, 0)


@pytest.mark.parametrize("value", ["3", True, 2.5, None])
def test_a_number_of_another_type_is_no_number(value: object) -> None:
    with pytest.raises(ValidationError):
        checked(JobSpec, SMALLEST | {"workers": {"max": value}})
    assert read(JobSpec, SMALLEST | {"workers": {"min": 2, "max": value}}).workers == TaskDemand(min=2, max=16)


def test_a_size_may_be_written_as_text() -> None:
    assert checked(ProjectQuota, {"memory_bytes": "1.5 GiB"}).memory_bytes == 3 * 2**29
    assert read(ProjectQuota, {"memory_bytes": "1.5 GiB"}).memory_bytes == 3 * 2**29
    with pytest.raises(ValidationError):
        checked(ProjectQuota, {"memory_bytes": -1})


@pytest.mark.parametrize(("text", "number"), [("Infinity", math.inf), ("-Infinity", -math.inf)])
def test_losses_that_json_has_no_number_for_are_named(text: str, number: float) -> None:
    sample = checked(Sample, SAMPLE | {"loss": text})
    assert sample.loss == number
    assert write(sample)["loss"] == text
    assert read(Sample, write(sample)) == sample
    nan = read(Sample, SAMPLE | {"loss": "NaN"}).loss
    assert nan is not None
    assert math.isnan(nan)


def test_an_error_names_the_field() -> None:
    with pytest.raises(ValueError, match="n_examples: is missing"):
        read(Sample, {name: value for name, value in SAMPLE.items() if name != "n_examples"})
    with pytest.raises(ValueError, match="step: 'x' is not a number"):
        read(Sample, SAMPLE | {"step": "x"})
    with pytest.raises(ValueError, match="not an object"):
        read(Sample, [SAMPLE])


def test_messages_inside_of_messages_are_read_and_written() -> None:
    telemetry = checked(Telemetry, {"samples": [SAMPLE | {"usage": {"cpu_cores": 1.5, "memory_bytes": 3}}]})
    assert telemetry.samples is not None
    assert telemetry.samples[0].usage == Usage(cpu_cores=1.5, memory_bytes=3)
    assert write(telemetry.samples[0].usage, without_none=True) == {"cpu_cores": 1.5, "memory_bytes": 3}
    assert read(Telemetry, write(telemetry)) == telemetry
    wanted = {"generation": 3, "directive": "run", "tasks": [{"name": "j-worker-0-0", "role": "worker", "rank": 0}]}
    added = {"global_batch": None, "membership_epoch": 0, "step": 0, "limits": None}
    assert write(read(WantedMembership, wanted)) == {**wanted, **added}
    limits = {"max_steps": 9, "max_seconds": 60.0}  # of the next release
    assert read(WantedMembership, {**wanted, "limits": limits}).limits == Limits(max_steps=9)


def test_reading_leaves_nothing_to_the_garbage_collector() -> None:
    """A round reads thousands of specifications, and the collector waits until it is over."""
    document = write(JobSpec(name="a", task="m:f")) | {"seed": "a word", "image": 3}
    read(JobSpec, document)
    gc.collect()
    gc.disable()
    try:
        read(JobSpec, document)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_rules_between_fields_hold_for_requests_only() -> None:
    contradiction = SMALLEST | {"workers": {"min": 5, "max": 2}}
    with pytest.raises(ValidationError, match=r"min \(5\) must not be above max \(2\)"):
        checked(JobSpec, contradiction)
    assert read(JobSpec, contradiction).workers.max == 2
    with pytest.raises(ValueError, match="give at least one of"):
        replace(JobSpec(name="a", task="m:f").convergence, loss_decrease=None, max_epochs=None).check()


def test_the_schema_says_what_the_annotations_say() -> None:
    schema = adapter(Convergence).json_schema()
    assert schema["additionalProperties"] is False
    steps = next(each for each in schema["properties"]["max_steps"]["anyOf"] if each["type"] == "integer")
    assert (steps["exclusiveMinimum"], steps["maximum"]) == (0, 10**12)
    assert schema["properties"]["max_cost"]["description"].startswith("money")
