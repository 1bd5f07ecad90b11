"""Stored specifications are read by other rules than requests: one that cannot be read fails alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import update
from tests.service.loop.loop_world import World

from optimus_contract import answers, job
from optimus_contract.codec import field_types, write
from optimus_scheduler.model import JobSpec, JobState, MetricTarget
from optimus_scheduler.settings import Settings
from optimus_service.insight.jobs.bodies import job_body
from optimus_service.insight.predictions.dry_run import as_record
from optimus_service.metrics.points import ClusterMetrics
from optimus_service.metrics.read import metrics_reader
from optimus_service.observe.spec import UnreadableSpecification, spec_of
from optimus_service.requests import adapter, checked
from optimus_service.store.database.tables import JobRow

RELEASED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "stored" / "specifications-0.1.0.json").read_text(encoding="utf-8")
)
"""As release 0.1.0 stored them."""
GARBAGE: dict[str, Any] = {
    "nothing": {},
    "no-object": ["a", "list"],
    "words": {"task": "m:f", "workers": "many"},
    "no-workers": {"task": "m:f", "workers": {"min": 0, "max": 0}},
    "other-way-round": {"task": "m:f", "workers": {"min": 3, "max": 2}},
    "unknown-mode": {"task": "m:f", "mode": "telepathic"},
    "negative": {"task": "m:f", "priority": -1},
    "strange-metric": {"task": "m:f", "convergence": {"target_metric": {"name": "x"}}},
}


def read(document: dict[str, Any]) -> JobSpec:
    return spec_of(replace(as_record({"name": "a", "project": "p"}, now=1000.0), spec=document))


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_what_the_last_release_stored_is_read(name: str) -> None:
    document = RELEASED[name]
    spec = read(document)
    assert (spec.priority, spec.family, spec.mode.value) == (document["priority"], document["task"], document["mode"])
    assert (spec.worker.minimum, spec.worker.maximum) == (document["workers"]["min"], document["workers"]["max"])
    assert spec.worker.resources.memory_bytes == document["workers"]["resources"]["memory_bytes"]
    assert (spec.server.minimum, spec.server.maximum) == (document["servers"]["min"], document["servers"]["max"])
    assert read({**document, "of_a_later_release": {"a": [1]}}) == spec


def test_all_that_a_specification_says_is_read() -> None:
    spec = read(RELEASED["everything"])
    assert spec.convergence.target_metric == MetricTarget("test_accuracy", at_least=0.95)
    assert (spec.convergence.max_cost, spec.convergence.max_seconds) == (12.5, 3600)
    assert (spec.gpu_types, spec.worker.resources.gpus, spec.deadline_at) == (
        ("a100", "v100"),
        {"a100": 1},
        1798761600.0,
    )


@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
def test_what_is_missing_has_the_default_of_a_request(architecture: str) -> None:
    request = checked(job.JobSpec, {"name": "a", "task": "m:f", "architecture": architecture})
    assert read({"task": "m:f", "architecture": architecture}) == read(write(request))


def test_a_run_that_is_watched_by_variables_alone_is_known_by_its_name() -> None:
    document = write(checked(job.JobSpec, {"name": "bert", "tracked": True}))
    found = [spec_of(replace(as_record({"name": name, "project": "p"}, now=1.0), spec=document)) for name in "ab"]
    assert [(spec.tracked, spec.family) for spec in found] == [(True, "a"), (True, "b")]


def test_other_code_in_a_command_is_another_task() -> None:
    def of(*command: str) -> tuple[str, tuple[str, ...]]:
        found = read({"architecture": "script", "command": list(command), "working_directory": "/w"})
        return found.family, found.arguments

    family, arguments = of("python", "-c", "import a", "--lr", "1")
    assert (family[:13], arguments) == ("/w/python -c ", ("--lr", "1"))
    assert of("python", "-c", "import a")[0] == family != of("python", "-c", "import b")[0]
    assert of("bash", "-lc", "./a")[0] != of("bash", "-lc", "./b")[0]
    assert of("python", "-m", "pkg.a") == ("/w/pkg.a", ())
    assert of("python", "a.py", "-c", "x") == ("/w/a.py", ("-c", "x"))


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*field_types(job.JobSpec), "other"]), json_values))
@example({"warmup_epochs": 5.0})
def test_whatever_is_stored_is_read_or_named(document: dict[str, Any]) -> None:
    job = replace(as_record({"name": "a", "project": "p"}, now=1000.0), spec={"task": "m:f", **document})
    try:
        spec = spec_of(job)
    except UnreadableSpecification:
        pass
    else:
        assert 0 <= spec.worker.minimum <= spec.worker.maximum
        assert spec.priority > 0
    assert json.loads(adapter(answers.Job).dump_json(job_body(job, None, None, 0.0), warnings="error"))["name"] == "a"


def store(world: World, job_id: str, document: Any) -> None:
    """As another release may have left it."""
    with world.repository._engine.begin() as connection:
        connection.execute(update(JobRow).where(JobRow.id == job_id).values(spec=document))


@pytest.mark.parametrize("name", sorted(GARBAGE))
def test_a_row_that_cannot_be_read_fails_alone(name: str, world: World) -> None:
    for number, document in enumerate((RELEASED["low-priority"], GARBAGE[name], RELEASED["smallest"])):
        job_id = f"job-{number}"
        world.submit(job_id)
        store(world, job_id, document)
    world.round()
    broken = world.repository.jobs.get("job-1")
    assert broken.state is JobState.FAILED
    assert "the stored specification of job job-1 cannot be read" in (broken.failure or "")
    assert "JobFailed" in {event.type for event in world.repository.events.page("job-1").items}
    world.round()
    assert world.running("job-0")
    assert world.running("job-2")
    assert not world.running("job-1")


@pytest.mark.parametrize("name", sorted(GARBAGE))
def test_lists_and_metrics_show_all_others(name: str, world: World) -> None:
    for number, document in enumerate((RELEASED["low-priority"], GARBAGE[name])):
        world.submit(f"job-{number}")
        store(world, f"job-{number}", document)
    assert {job_body(job, None, None, 0.0).id for job in world.repository.jobs.page().items} == {"job-0", "job-1"}
    metrics = metrics_reader(world.repository, world.clock, lambda: True, lambda: None, Settings())()
    assert isinstance(metrics, ClusterMetrics)
    assert {job.job_id for job in metrics.active_jobs} == {"job-0", "job-1"}
