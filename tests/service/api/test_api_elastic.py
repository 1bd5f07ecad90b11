"""Elastic batches over HTTP: what is accepted, refused by name, told to coordinators and taken from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.service.api.api_harness import NOW, Api, faults, job_spec, membership, on_sqlite, sample
from tests.service.store.store_builders import set_wanted

from optimus_scheduler.model import Allocation, Directive, PlacedTask, Role, TaskKey

pytestmark = on_sqlite
BOUNDS: dict[str, Any] = {"minimum": 32, "maximum": 512, "per_pass": 64}


def submit(api: Api, **spec: Any) -> Any:
    whole = {"architecture": "allreduce", "elastic_batch": BOUNDS, **spec}
    return api.post("/v1/jobs", json=job_spec(**{name: value for name, value in whole.items() if value is not ...}))


def test_bounds_are_kept_with_their_defaults(api: Api) -> None:
    answer = submit(api)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert job["spec"]["elastic_batch"] == {**BOUNDS, "most_passes": 16, "warmup_epochs": 1.0}
    assert job["global_batch"] is None, "no round has looked at it yet"
    assert api.submit(name="plain")
    assert submit(api, global_batch_size=64, elastic_batch={**BOUNDS, "warmup_epochs": 0.0}).status_code == 201


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"architecture": "ps"}, "elastic_batch", "say architecture: allreduce, or leave it out"),
        ({"architecture": ...}, "elastic_batch", "say architecture: allreduce, or leave it out"),
        ({"scaling": "weak"}, "elastic_batch", "give one of elastic_batch and scaling: weak"),
        ({"global_batch_size": 16}, "elastic_batch", "global_batch_size (16) must be from 32 to 512"),
        ({"elastic_batch": {**BOUNDS, "maximum": 31}}, "elastic_batch", "minimum (32) must not be above maximum (31)"),
        ({"elastic_batch": {**BOUNDS, "per_pass": 1}}, "elastic_batch", "computes 16 examples in a step at most"),
        ({"elastic_batch": {**BOUNDS, "minimum": 0}}, "elastic_batch.minimum", "greater than or equal to 1"),
        ({"elastic_batch": {**BOUNDS, "per_pass": "64"}}, "elastic_batch.per_pass", "integer"),
        ({"elastic_batch": {**BOUNDS, "most_passes": 65}}, "elastic_batch.most_passes", "less than or equal to 64"),
        ({"elastic_batch": {**BOUNDS, "warmup_epochs": -1.0}}, "elastic_batch.warmup_epochs", "greater than or equal"),
        ({"elastic_batch": {"minimum": 32, "maximum": 64}}, "elastic_batch.per_pass", "required"),
        ({"elastic_batch": {**BOUNDS, "min": 32}}, "elastic_batch.min", "did you mean minimum? allowed here: minimum"),
        ({"elastic_batch": {**BOUNDS, "warm": 1.0}}, "elastic_batch.warm", "did you mean warmup_epochs? allowed here"),
        ({"elastic_batch": True}, "elastic_batch", "must be an object"),
    ],
)
def test_what_cannot_be_is_refused_by_name(api: Api, spec: dict[str, Any], field: str, words: str) -> None:
    found = faults(submit(api, **spec))
    assert field in found
    assert words in found[field]


def test_an_async_job_is_refused(api: Api) -> None:
    assert "mode sync" in faults(submit(api, mode="async"))["elastic_batch"]


def test_the_coordinator_is_told_and_tells(api: Api) -> None:
    job_id = submit(api).json()["id"]
    assert api.as_task("GET", job_id, "membership", params={"timeout_seconds": 0}).json()["global_batch"] is None
    task = PlacedTask(TaskKey(job_id, Role.WORKER, 0), "node-1")
    set_wanted(api.repository, job_id, Allocation(1, 0), Directive.RUN, [task], NOW, batch=96)
    assert api.as_task("GET", job_id, "membership", params={"timeout_seconds": 0}).json()["global_batch"] == 96
    assert api.job(job_id)["global_batch"] == 96

    api.start(job_id, workers=1, servers=0, global_batch=32)
    api.start(job_id, workers=1, servers=0, epoch=2, step=50, cause="batch", global_batch=96, pause_seconds=0.01)
    points = api.get(f"/v1/jobs/{job_id}/allocations").json()["allocations"]
    assert [(point["global_batch"], point["cause"]) for point in points] == [(32, "start"), (96, "batch")]
    assert api.job(job_id)["rescales"] == 0, "its tasks are the same"
    (event, *_) = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    assert "in batches of 96" in event["message"]

    told = sample(membership_epoch=2, workers=1, servers=0, step=80, n_steps=30, updates=12, global_batch=96)
    answer = api.as_task("POST", job_id, "telemetry", json={"samples": [told]})
    assert answer.json() == {"accepted": 1, "ignored": []}
    (stored,) = api.repository.samples.newest(job_id, 1)
    assert (stored.n_steps, stored.updates, stored.global_batch) == (30, 12, 96)
    assert api.job(job_id)["step"] == 80


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"updates": 3}, "samples.0"),
        ({"global_batch": 64}, "samples.0"),
        ({"updates": 0, "global_batch": 64}, "samples.0.updates"),
        ({"updates": 1, "global_batch": 0}, "samples.0.global_batch"),
    ],
)
def test_samples_that_cannot_be_are_refused(api: Api, change: dict[str, Any], field: str) -> None:
    job_id = submit(api).json()["id"]
    api.start(job_id, workers=1, servers=0)
    told = sample(workers=1, servers=0, **change)
    assert field in faults(api.as_task("POST", job_id, "telemetry", json={"samples": [told]}))


def test_a_report_without_a_batch_is_one_of_a_fixed_batch(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    (point,) = api.get(f"/v1/jobs/{job_id}/allocations").json()["allocations"]
    assert point["global_batch"] is None
    answer = api.as_task("POST", job_id, "membership", json=membership(job_id, epoch=2, global_batch=0))
    assert "global_batch" in faults(answer)


def test_predictions_are_in_steps_with_the_smallest_batch(api: Api) -> None:
    """Updates of 96 examples at 12 a second, in a noise scale of 960 examples."""
    job_id = submit(api).json()["id"]
    api.start(job_id, workers=1, servers=0, global_batch=96)
    worth = (1 + 960 / 32) / (1 + 960 / 96)
    for number in range(1, 9):
        told = sample(
            workers=1, servers=0, sequence=number, step=round(number * 24 * worth), n_steps=round(24 * worth),
            updates=24, global_batch=96, n_examples=24 * 96, seconds=2.0, at=NOW + 2 * number,
            gradients={"square": 1.0, "variance": 960.0},
        )  # fmt: skip
        assert api.as_task("POST", job_id, "telemetry", json={"samples": [told]}).json()["accepted"] == 1
    answer = api.get(f"/v1/jobs/{job_id}/predictions")
    assert answer.status_code == 200, answer.text
    alone = next(point for point in answer.json()["speeds"] if point["workers"] == 1)
    assert math.isclose(alone["measured"], 12 * worth, rel_tol=1e-6)
    assert alone["steps_per_second"] >= 0.8 * alone["measured"], "with the best batch of that size"
    assert api.job(job_id)["noise_scale"] == 960.0
    assert api.get(f"/v1/jobs/{job_id}/explanation").status_code == 200
