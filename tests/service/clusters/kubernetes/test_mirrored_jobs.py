"""Jobs submitted by REST are objects, too, on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.clusters.kubernetes.door import EXAMPLE, Door, is_served
from tests.service.clusters.kubernetes.kubernetes_harness import wait_for

from optimus_contract.change import JobChange
from optimus_scheduler.lifecycle import CancelRequested, ResumeRequested
from optimus_scheduler.model import Directive, JobState
from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import LOCAL
from optimus_service.api.jobs.changes import change_job, pause_job
from optimus_service.clusters.kubernetes.gateway import ApiRefused
from optimus_service.crd.definition import definition
from optimus_service.crd.mirroring import SHOWN
from optimus_service.crd.translate import object_names
from optimus_service.requests import checked

Json = dict[str, Any]
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.optimus.dev"


def shown(door: Door, job_id: str) -> Json:
    """The job's object, once it has a status and the controller has seen it."""

    def is_there() -> Json | None:
        door.controller.sync()
        found = [each for each in door.objects() if each["metadata"]["name"] == job_id and each.get("status")]
        seen = any(each.mirrors == job_id and each.status for each in door.controller._objects.values())
        return found[0] if found and seen else None

    found: Json = wait_for(f"{job_id} is shown", is_there)
    return found


def times_shown(door: Door, job_id: str) -> int:
    return sum(event.type == SHOWN for event in door.repository.events.page(job_id).items)


def test_a_job_submitted_by_rest_is_an_object(door: Door) -> None:
    job = door.submit(environment={"PASSWORD": "hush"}, task_args={"hidden": 8}, priority=2.5)
    found = shown(door, job.id)
    assert found["status"]["jobId"] == job.id
    assert found["status"]["state"] == "queued"
    assert found["spec"]["task_args"] == {"hidden": 8}
    assert found["spec"]["workers"] == job.spec["workers"]
    assert "hush" not in json.dumps(found)
    assert not found["metadata"].get("ownerReferences")
    row = next(line for line in door.kubectl("get", "tj").splitlines() if line.startswith(job.id))
    assert row.split()[:4] == [job.id, "queued", "0", "0"]


def test_objects_and_jobs_do_not_chase_each_other(door: Door) -> None:
    job = door.submit()
    before = shown(door, job.id)["metadata"]
    door.apply("an-object")
    door.wait_for_status("an-object", state="queued")
    for _ in range(3):
        door.controller.sync()
    door.restart()
    for _ in range(3):
        door.controller.sync()
    assert len(door.objects()) == 2
    assert len(door.repository.jobs.page().items) == 2
    after = shown(door, job.id)["metadata"]
    assert (after["uid"], after["resourceVersion"]) == (before["uid"], before["resourceVersion"])
    assert times_shown(door, job.id) == 1


def spec_of(door: Door, job_id: str) -> Json:
    return next(each["spec"] for each in door.objects() if each["metadata"]["name"] == job_id)


def test_what_is_changed_by_rest_is_changed_in_the_object(door: Door) -> None:
    job = door.submit(labels={"team": "vision"}, convergence={"max_epochs": 9})
    assert shown(door, job.id)["metadata"]["labels"]["team"] == "vision"
    audit = Audit(door.services.clock, LOCAL, "job.change", job.id, job.project)
    for change in ({"workers": {"max": 3}, "convergence": {"max_steps": 5}}, {"unset": ["convergence.max_epochs"]}):
        change_job(job.id, checked(JobChange, change), door.services, audit)
    pause_job(job.id, door.services, LOCAL)

    def follows() -> bool:
        door.controller.sync()
        spec = spec_of(door, job.id)
        return bool(spec["workers"]["max"] == 3 and spec["convergence"] == {"max_steps": 5} and spec["paused"])

    wait_for("the object follows", follows)
    door.wait_for_status(job.id, state="paused")
    for _ in range(3):
        door.controller.sync()
    assert door.repository.jobs.get(job.id).spec["workers"]["max"] == 3, "the object undoes nothing"
    door.kubectl("patch", "tj", job.id, "--type=merge", "-p", '{"spec": {"paused": false, "priority": 4}}')
    door.wait_for_state(job.id, JobState.QUEUED)
    assert door.repository.jobs.get(job.id).spec["priority"] == 4.0


def test_an_impossible_edit_stays_to_be_mended(door: Door) -> None:
    job = door.submit()
    shown(door, job.id)
    door.kubectl("patch", "tj", job.id, "--type=merge", "-p", '{"spec": {"workers": {"min": 40, "max": 50}}}')
    door.wait_for_status(job.id, reason="Invalid")
    for _ in range(3):
        door.controller.sync()
    assert spec_of(door, job.id)["workers"]["min"] == 40
    assert door.repository.jobs.get(job.id).spec["workers"]["min"] == 1


def test_deleting_the_object_cancels_the_job(door: Door) -> None:
    job, other = door.submit(), door.submit()
    shown(door, job.id)
    shown(door, other.id)
    door.kubectl("delete", "tj", job.id)
    door.wait_for_state(job.id, JobState.CANCELLED)
    door.controller.sync()
    assert [each["metadata"]["name"] for each in door.objects()] == [other.id]  # it is not made again
    assert door.repository.jobs.get(other.id).state is JobState.QUEUED


def test_an_object_deleted_while_nobody_looked_cancels_the_job(door: Door) -> None:
    job = door.submit()
    shown(door, job.id)
    door.close()
    door.kubectl("delete", "tj", job.id)
    door.restart()
    door.wait_for_state(job.id, JobState.CANCELLED)
    assert door.objects() == []


def test_a_leader_that_died_after_creating_is_followed_by_one_that_knows(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = door.submit()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(door.controller._mirroring, "_note", dies)
        with pytest.raises(KeyboardInterrupt):
            door.controller.sync()
    assert times_shown(door, job.id) == 0
    door.restart()
    shown(door, job.id)
    assert times_shown(door, job.id) == 1
    door.kubectl("delete", "tj", job.id)
    door.wait_for_state(job.id, JobState.CANCELLED)


def test_an_object_that_the_watch_has_not_told_of_yet_cancels_nothing(door: Door) -> None:
    job = door.submit()
    door.controller._watcher.close()  # from here on nothing is heard
    for _ in range(3):
        door.controller.sync()
    assert door.repository.jobs.get(job.id).state is JobState.QUEUED
    assert len(door.objects()) == 1


def test_a_definition_that_is_gone_cancels_nothing(door: Door, resource: None) -> None:
    job = door.submit()
    shown(door, job.id)
    door.harness.admin.delete(DEFINITION)
    door.controller.sync()
    path = f"/apis/optimus.dev/v1alpha1/namespaces/{door.harness.namespace}/trainingjobs"

    def is_gone() -> bool:
        try:
            door.harness.admin.get(path)
        except ApiRefused as error:
            return error.is_missing
        return False

    wait_for("the definition is gone", is_gone)
    wait_for("the watch has told", lambda: not door.controller._objects.values())
    door.controller.sync()
    assert door.repository.jobs.get(job.id).state is JobState.QUEUED
    door.controller._mirroring.look_after_definition()
    door.control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(definition()))
    wait_for("it is back", lambda: is_served(door.harness.admin))
    door.restart()
    assert shown(door, job.id)["metadata"]["name"] == job.id
    assert door.repository.jobs.get(job.id).state is JobState.QUEUED


def test_editing_the_object_changes_the_job(door: Door) -> None:
    job = door.submit(environment={"PASSWORD": "hush"})
    shown(door, job.id)
    door.kubectl("scale", "tj", job.id, "--replicas=3")
    door.wait_for_status(job.id, observedGeneration=2)
    spec = door.repository.jobs.get(job.id).spec
    assert (spec["workers"]["max"], spec["name"]) == (3, "by-rest")
    assert spec["environment"] == {"PASSWORD": "hush"}
    door.kubectl("patch", "tj", job.id, "--type=merge", "-p", json.dumps({"spec": {"workers": {"min": 9}}}))
    status = door.wait_for_status(job.id, observedGeneration=3)
    assert (status["state"], status["reason"]) == ("queued", "Invalid")
    assert "min (9)" in status["message"]


def test_the_end_shows_and_is_cleaned_up_later(door: Door) -> None:
    job = door.submit()
    shown(door, job.id)
    door.repository.jobs.advance(job.id, CancelRequested(has_tasks=False), door.services.clock())
    door.wait_for_status(job.id, state="cancelled")
    wait_for("the end is seen", lambda: [each.status.get("state") for each in door.controller._objects.values()])
    door.controller.sync()
    assert len(door.objects()) == 1
    door.restart(keep_objects_seconds=0.0)
    door.controller.sync()
    wait_for("the object is gone", lambda: door.objects() == [])


def test_a_job_that_is_resumed_after_its_object_went_gets_another(door: Door) -> None:
    job = door.submit()
    shown(door, job.id)
    door.repository.jobs.advance(job.id, CancelRequested(has_tasks=False), door.services.clock())
    door.restart(keep_objects_seconds=0.0)

    def gone() -> bool:
        door.controller.sync()
        return not (door.objects() or door.controller._objects.values())

    wait_for("its object is gone", gone)
    door.repository.jobs.advance(job.id, ResumeRequested(), door.services.clock())
    assert shown(door, job.id)["status"]["state"] == "paused"
    assert door.repository.jobs.get(job.id).directive is Directive.RUN
    door.kubectl("delete", "tj", job.id)  # deleting this one cancels the job as ever
    door.wait_for_state(job.id, JobState.CANCELLED)


def test_an_object_of_a_job_that_nobody_knows_is_removed(door: Door) -> None:
    job = door.submit()
    found = shown(door, job.id)
    metadata = found["metadata"]
    names = object_names("nobody-xyz")
    kept = {key: metadata[key] for key in ("labels",)}
    stranger = {**kept, "name": names[0], "annotations": {"optimus.dev/job-id": "nobody-xyz"}}
    door.kubectl("apply", "-f", "-", stdin=json.dumps({**EXAMPLE, "metadata": stranger}))

    def removed() -> bool:
        door.controller.sync()
        return names[0] not in [each["metadata"]["name"] for each in door.objects()]

    wait_for("it is removed", removed)
    assert len(door.repository.jobs.page().items) == 1


def test_a_name_that_somebody_has_is_left_to_them(door: Door) -> None:
    job = door.submit()
    door.apply(job.id)
    second = object_names(job.id)[1]
    door.wait_for_status(second, state="queued", jobId=job.id)
    assert door.wait_for_status(job.id, state="queued")["jobId"] != job.id
    door.kubectl("delete", "tj", second)
    door.wait_for_state(job.id, JobState.CANCELLED)


def test_a_copy_of_an_object_is_another_job(door: Door) -> None:
    job = door.submit()
    found = shown(door, job.id)
    metadata = {key: found["metadata"][key] for key in ("labels", "annotations")}
    copy = {**EXAMPLE, "metadata": {**metadata, "name": "copied"}, "spec": found["spec"]}
    door.kubectl("apply", "-f", "-", stdin=json.dumps(copy))
    assert door.wait_for_status("copied", state="queued")["jobId"] != job.id
    assert len(door.repository.jobs.page().items) == 2


def test_objects_of_another_installation_are_let_alone(door: Door) -> None:
    job = door.submit()
    shown(door, job.id)
    door.repository.jobs.advance(job.id, CancelRequested(has_tasks=False), 1.0)
    door.restart(instance="another", keep_objects_seconds=0.0)
    door.controller.sync()
    door.controller.sync()
    assert len(door.objects()) == 1
    assert len(door.repository.jobs.page().items) == 1


@given(st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,100}[a-z0-9])?\Z"))
def test_names_are_valid_and_differ(job_id: str) -> None:
    first, second = object_names(job_id)
    assert first != second
    assert max(len(first), len(second)) <= 63
    assert first[-1] != "-"
