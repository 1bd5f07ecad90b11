"""The second door: objects become jobs, jobs become statuses, on a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client
from tests.contract.accepted import FILES, OBJECT, STORED, says
from tests.service.clusters.kubernetes.door import EXAMPLE, Door, only_job
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, wait_for

from optimus_scheduler.model import JobState
from optimus_service.api.access.callers import LOCAL
from optimus_service.api.http.problems import Problem
from optimus_service.api.jobs.changes import pause_job, resume_job
from optimus_service.api.jobs.submission import OBJECT_GONE
from optimus_service.clusters.kubernetes.gateway import ApiRefused
from optimus_service.crd.definition import definition
from optimus_service.crd.translate import age

REPOSITORY = Path(__file__).resolve().parents[4]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Json = dict[str, Any]


def test_the_chart_has_this_definition() -> None:
    text = Chart.load(REPOSITORY / "helm/optimus").render({"existingSecret": "optimus"}, name="demo", namespace="ml")[
        "optimus/templates/trainingjobs.yaml"
    ]
    found = yaml.safe_load(text)
    del found["metadata"]["labels"], found["metadata"]["annotations"]
    assert found == definition(), "run scripts/training-job-definition"
    client.V1CustomResourceDefinition.model_validate(found)


def test_nothing_of_the_definition_was_dropped(kubernetes: KubernetesHarness, resource: None) -> None:
    found = kubernetes.admin.get(f"{DEFINITIONS}/trainingjobs.optimus.dev")
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert "NonStructuralSchema" not in conditions
    sent = definition()["spec"]["versions"][0]
    assert found["spec"]["versions"][0]["schema"] == sent["schema"]
    assert [each["name"] for each in found["spec"]["versions"][0]["additionalPrinterColumns"]] == [
        each["name"] for each in sent["additionalPrinterColumns"]
    ]


def test_apply_submits_once_and_status_follows(door: Door) -> None:
    door.apply()
    status = door.wait_for_status(state="queued")
    job = only_job(door)
    assert (status["jobId"], job.name) == (job.id, "digits-mlp")
    assert job.spec["workers"]["resources"]["memory_bytes"] == 2**30
    for _ in range(3):
        door.controller.sync()
    assert only_job(door) == job
    assert door.rounds == ["submit"]
    header, row = door.kubectl("get", "tj").splitlines()
    assert header.split() == ["NAME", "STATE", "W", "P", "LOSS", "PROGRESS", "ETA", "AGE"]
    assert row.split()[:4] == ["digits-mlp", "queued", "0", "0"]


def test_objects_of_the_last_release_are_accepted(door: Door) -> None:
    files = {name: yaml.safe_load(text) for name, text in FILES.items() if name.startswith("digits-")}
    objects = [yaml.safe_load(OBJECT)]
    for name, spec in files.items():
        del spec["name"]
        objects.append({**objects[0], "metadata": {"name": f"file-{name}"}, "spec": spec})
    door.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    for each in objects:
        name = each["metadata"]["name"]
        job = door.repository.jobs.get(door.wait_for_status(name, state="queued")["jobId"])
        stored = STORED[name.removeprefix("file-")]
        if name not in STORED:
            assert says(job.spec, {**stored, "name": name})
        else:
            assert says(job.spec, {key: stored[key] for key in ("name", "task", "mode", "convergence")})


def test_delete_cancels(door: Door) -> None:
    door.apply()
    job_id = door.wait_for_status(state="queued")["jobId"]
    door.kubectl("delete", "tj", "digits-mlp")
    door.wait_for_state(job_id, JobState.CANCELLED)
    assert door.repository.events.latest_types([OBJECT_GONE], [job_id])
    # The same name again is another job.
    door.apply()
    assert door.wait_for_status(state="queued")["jobId"] != job_id


def test_cancelling_by_rest_shows_in_the_object(door: Door) -> None:
    from optimus_scheduler.lifecycle import CancelRequested

    door.apply()
    job_id = door.wait_for_status(state="queued")["jobId"]
    door.repository.jobs.advance(job_id, CancelRequested(has_tasks=False), 1.0)
    door.wait_for_status(state="cancelled")
    assert len(door.repository.jobs.page().items) == 1  # nothing is submitted again


def test_a_cancelled_job_goes_on_when_it_is_resumed(door: Door) -> None:
    from optimus_scheduler.lifecycle import CancelRequested, ResumeRequested

    door.apply()
    job_id = door.wait_for_status(state="queued")["jobId"]
    door.repository.jobs.advance(job_id, CancelRequested(has_tasks=False), 1.0)
    door.wait_for_status(state="cancelled")
    door.repository.jobs.advance(job_id, ResumeRequested(), 2.0)
    assert door.wait_for_status(state="paused")["jobId"] == job_id


def test_scale_and_edit_change_the_job(door: Door) -> None:
    door.apply()
    door.wait_for_status(state="queued")
    door.kubectl("scale", "tj", "digits-mlp", "--replicas=2")
    door.wait_for_status(observedGeneration=2)
    assert only_job(door).spec["workers"]["max"] == 2
    door.apply(priority=3.0)
    door.wait_for_status(observedGeneration=3)
    assert only_job(door).spec["priority"] == 3.0
    door.apply(priority=3.0, mode="async")
    status = door.wait_for_status(observedGeneration=4)
    assert status["reason"] == "NotChanged"
    assert status["message"] == "cannot be changed any more: mode; the job goes on as it was submitted"
    assert only_job(door).spec["mode"] == "sync"


def test_an_object_pauses_its_job_and_labels_it(door: Door) -> None:
    door.apply(labels={"team": "vision"}, paused=True)
    door.wait_for_status(state="paused")
    job = only_job(door)
    assert job.spec["labels"] == {"team": "vision"}
    assert [each.id for each in door.repository.jobs.page(labels={"team": "vision"}).items] == [job.id]
    with pytest.raises(Problem, match="409"):
        pause_job(job.id, door.services, LOCAL)
    with pytest.raises(Problem, match="409"):
        resume_job(job.id, door.services, LOCAL)
    door.apply(labels={"team": "speech"}, paused=False)
    door.wait_for_status(state="queued")
    assert only_job(door).spec["labels"] == {"team": "speech"}


def test_what_one_task_holds_cannot_be_edited(door: Door) -> None:
    door.apply()
    door.wait_for_status(state="queued")
    before = only_job(door).spec
    door.apply(priority=2.0, workers={**EXAMPLE["spec"]["workers"], "resources": {"cpu": 2.5}})
    status = door.wait_for_status(observedGeneration=2)
    assert status["reason"] == "NotChanged"
    assert "workers.resources" in status["message"]
    assert only_job(door).spec == {**before, "priority": 2.0}  # what may be changed is
    for _ in range(3):
        door.controller.sync()
    events = [event for event in door.repository.events.page(only_job(door).id).items if event.type == "NotChanged"]
    assert [event.data for event in events] == [{"generation": 2}]  # told once


def test_it_is_told_once_by_objects_that_are_seen_late(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    door.apply()
    door.wait_for_status(state="queued")
    door.apply(workers={**EXAMPLE["spec"]["workers"], "resources": {"cpu": 2.5}})
    edited = wait_for(
        "the edit is seen", lambda: [each for each in door.controller._objects.values() if each.generation == 2]
    )
    monkeypatch.setattr(door.controller._objects, "values", lambda: edited)  # no status that is written is seen
    for _ in range(3):
        door.controller.sync()
    events = door.repository.events.of_type("NotChanged", [only_job(door).id])
    assert [event.data for event in events] == [{"generation": 2}]


def test_an_edit_that_the_cluster_could_never_hold_is_refused(door: Door) -> None:
    door.apply()
    door.wait_for_status(state="queued")
    before = only_job(door).spec
    door.apply(workers={"min": 40, "max": 50})
    status = door.wait_for_status(observedGeneration=2)
    assert (status["state"], status["reason"]) == ("queued", "Invalid")
    assert "workers.min" in status["message"]
    assert only_job(door).spec == before


def test_a_key_that_looks_like_an_objects_cancels_nothing(door: Door) -> None:
    """As stored by an earlier release, which took any key."""
    job = door.submit()
    repository = door.repository
    document = {**job.spec, "name": "other"}
    other, _ = repository.jobs.create("other-x", document, "nonce", "trainingjob:mine", "hash", door.services.clock())
    door.apply()
    door.wait_for_status(state="queued")
    for _ in range(3):
        door.controller.sync()
    assert repository.jobs.get(other.id).state is JobState.QUEUED


def test_an_object_that_describes_no_job_says_why(door: Door) -> None:
    door.apply(workers={"min": 3, "max": 2})
    assert "min (3) must not be above max (2)" in door.wait_for_status(state="refused")["message"]
    door.apply(workers={"min": 1, "max": 2, "resources": {"cpu": 1000}})
    status = door.wait_for_status(state="refused", observedGeneration=2)
    assert "cpu" in status["message"]
    assert door.repository.jobs.page().items == ()
    door.apply(workers={"min": 1, "max": 2})
    door.wait_for_status(state="queued")


def test_the_server_refuses_what_the_schema_does(door: Door) -> None:
    with pytest.raises(AssertionError, match="convergance"):
        door.apply(convergance={})
    path = f"/apis/optimus.dev/v1alpha1/namespaces/{door.harness.namespace}/trainingjobs"
    for spec in ({}, {"task": "no import path"}, {"task": "m:f", "workers": {"min": 0}}, {"task": "m:f", "mode": "x"}):
        body = {**EXAMPLE, "metadata": {"name": "wrong"}, "spec": spec}
        with pytest.raises(ApiRefused) as refused:
            door.harness.admin.create(path, body)
        assert refused.value.status == 422


@given(st.floats(0, 1e8))
def test_durations_are_short(seconds: float) -> None:
    assert len(age(seconds)) <= 8


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59, "59s"), (60, "1m"), (61, "1m1s"), (7260, "2h1m")])
def test_durations(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_an_object_that_breaks_the_controller_keeps_no_other_out(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    door.apply("broken")
    door.apply("sound")
    handle = door.controller._reconciled

    def breaks_for_one(found: Any, *rest: Any) -> dict[str, object]:
        if found.name == "broken":
            raise RuntimeError("nobody thought of this")
        return handle(found, *rest)

    monkeypatch.setattr(door.controller, "_reconciled", breaks_for_one)
    door.controller.sync()
    assert door.status("sound")["jobId"]
    broken = door.status("broken")
    assert broken["state"] == "refused"
    assert "RuntimeError" in broken["message"]
