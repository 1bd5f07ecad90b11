"""Reported memberships and what they change in the job."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.store.store_builders import MakeJob, a_membership, a_sample, add_samples, placed, set_wanted

from optimus_scheduler.lifecycle import CancelRequested, MembershipFormed, Outcome, ResultReported
from optimus_scheduler.model import NOTHING, Allocation, Directive, Role
from optimus_service.store.errors import JobNotFound
from optimus_service.store.repository import Repository


def test_a_report_is_kept_once(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    report = a_membership(pause_seconds=0.5, pause_parts={"save_seconds": 0.1}, message="first")
    assert repository.memberships.report("job-1", report)
    before = repository.jobs.get("job-1")
    assert not repository.memberships.report("job-1", report)
    assert repository.jobs.get("job-1") == before
    assert repository.memberships.of_job("job-1") == [report]
    event, _ = repository.events.page("job-1").items
    assert (event.type, event.at) == ("MembershipChanged", report.at)
    assert (event.data["workers"], event.data["servers"], event.data["cause"]) == (2, 1, "start")


def test_what_a_change_costs_and_why_is_told(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    why = "the command of w did not end within 20 s of being asked to (--stop-seconds), and was killed"
    repository.memberships.report("job-1", a_membership(workers=("w",), cause="rescale", lost_steps=12, message=why))
    event, _ = repository.events.page("job-1").items
    begun = "Membership epoch 1 began at step 0 with 1 worker and 1 server (rescale)"
    assert event.message == f"{begun}: 12 steps are lost; {why}."
    some = a_membership(epoch=2, workers=("w",), cause="worker_lost", lost_steps=7, pause_parts={"told_every": 5})
    repository.memberships.report("job-1", some)
    event, *_ = repository.events.page("job-1").items
    assert event.message.endswith("(worker_lost): at least 7 steps are lost."), "when it was killed is not known"
    parts = {"told_every": 5, "stop_seconds": 0.5}
    some = a_membership(epoch=3, workers=("w",), cause="rescale", lost_steps=7, pause_parts=parts)
    repository.memberships.report("job-1", some)
    event, *_ = repository.events.page("job-1").items
    assert event.message.endswith("(replaced): about 7 steps are lost.")


def test_a_script_that_began_from_an_older_checkpoint_began_and_lost_from_there(repository: Repository) -> None:
    spec = {"name": "job", "project": "default", "architecture": "script", "command": ["python", "train.py"]}
    repository.jobs.create("job-1", spec, "nonce", None, "hash", 0.0)
    repository.jobs.put_profile("job-1", {"began_at_step": None})
    repository.memberships.report("job-1", a_membership(workers=("w",), servers=()))
    add_samples(repository, "job-1", [a_sample(step=21, n_steps=21)], 1.0)
    resumed = a_membership(epoch=2, workers=("v",), servers=(), cause="resume", lost_steps=21)
    repository.memberships.report("job-1", resumed)
    event, *_ = repository.events.page("job-1").items
    assert event.message.endswith("(resume): at most 21 steps are lost.")
    repository.memberships.began_at("job-1", 20, 900.0)
    found = repository.memberships.of_job("job-1")
    assert [(each.step, each.lost_steps) for each in found] == [(20, 0), (20, 1)]
    event, *_ = repository.events.page("job-1").items
    told = "with a checkpoint from before the job, as its steps tell: 1 step was lost, and not more"
    assert (event.type, event.at) == ("BeganFurtherOn", 900.0)
    assert event.message == f"Membership epochs 1, 2 began at step 20, {told}."
    assert repository.jobs.get("job-1").first_step == 21
    repository.memberships.began_at("job-1", 20, 901.0)
    assert repository.events.page("job-1").items[0] == event, "told once"


def test_the_job_shows_the_newest_membership(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    repository.memberships.report("job-1", a_membership(epoch=1))
    repository.memberships.report("job-1", a_membership(epoch=3, step=40, workers=("w",), cause="worker_lost"))
    repository.memberships.report("job-1", a_membership(epoch=2, step=20, workers=("w",)))  # late
    job = repository.jobs.get("job-1")
    assert (job.membership_epoch, job.running, job.step, job.rescales) == (3, Allocation(1, 1), 40, 1)
    assert [membership.epoch for membership in repository.memberships.of_job("job-1")] == [1, 2, 3]
    assert repository.wanted.get("job-1").membership_epoch == 3


def test_other_tasks_at_the_same_size_are_no_rescale(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    for epoch, workers in enumerate((("w-0",), ("w-1",), ("w-1", "x-0"), ("w-2", "x-1")), 1):
        repository.memberships.report("job-1", a_membership(epoch=epoch, workers=workers))
    causes = [membership.cause for membership in repository.memberships.of_job("job-1")]
    assert causes == ["start", "replaced", "rescale", "replaced"]
    assert repository.jobs.get("job-1").rescales == 1


def test_tasks_that_come_for_lost_ones_are_no_rescale(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    way = [(1, "start"), (3, "rescale"), (1, "worker_lost"), (2, "rescale"), (3, "rescale"), (2, "rescale")]
    for epoch, (workers, cause) in enumerate(way, 1):
        if wanted := {1: 1, 2: 3, 6: 2}.get(epoch):
            tasks = [placed("job-1", Role.WORKER, rank) for rank in range(wanted)]
            set_wanted(repository, "job-1", Allocation(wanted, 0), Directive.RUN, tasks, 10.0 * epoch)
        names = tuple(f"job-1-worker-{rank}-0" for rank in range(workers))
        report = a_membership(epoch=epoch, at=10.0 * epoch + 5.0, workers=names, servers=(), cause=cause)
        repository.memberships.report("job-1", report)
    causes = [membership.cause for membership in repository.memberships.of_job("job-1")]
    assert causes == ["start", "rescale", "worker_lost", "replaced", "replaced", "rescale"]
    assert repository.jobs.get("job-1").rescales == 2


def test_a_rollback_takes_the_step_back(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    repository.memberships.report("job-1", a_membership(epoch=1))
    add_samples(repository, "job-1", [a_sample(step=100)], 1.0)
    repository.memberships.report("job-1", a_membership(epoch=2, step=90, lost_steps=10, cause="server_lost"))
    job = repository.jobs.get("job-1")
    assert (job.step, job.epoch, job.loss) == (90, None, None), "what was told of lost steps holds no more"
    add_samples(repository, "job-1", [a_sample(membership_epoch=2, step=91, loss=2.75, data_epoch=0.25)], 2.0)
    job = repository.jobs.get("job-1")
    assert (job.step, job.epoch, job.loss) == (91, 0.25, 2.75)


@pytest.mark.parametrize("cause", ["resume", "coordinator_restart"])
@pytest.mark.parametrize(
    ("began", "told", "lost", "step"),
    [
        (90, 92, 0, 92),  # it goes on where it was
        (80, 82, 10, 82),  # from a checkpoint
        (80, 95, 10, 95),  # likewise, and is further than before already
    ],
)
def test_steps_that_a_new_membership_told_before_its_report_are_not_lost(
    repository: Repository, make_job: MakeJob, cause: str, began: int, told: int, lost: int, step: int
) -> None:
    make_job()
    repository.memberships.report("job-1", a_membership(epoch=1))
    add_samples(repository, "job-1", [a_sample(step=100)], 1.0)
    repository.memberships.report("job-1", a_membership(epoch=2, step=70, cause="server_lost", lost_steps=30))
    add_samples(repository, "job-1", [a_sample(membership_epoch=2, step=90)], 2.0)
    add_samples(repository, "job-1", [a_sample(membership_epoch=3, step=told)], 3.0)
    repository.memberships.report("job-1", a_membership(epoch=3, step=began, cause=cause))
    assert repository.memberships.of_job("job-1")[-1].lost_steps == lost
    event, *_ = repository.events.page("job-1").items
    assert ("lost" in event.message) == bool(lost)
    assert repository.jobs.get("job-1").step == step


def test_steps_before_a_membership_that_told_none_are_lost_with_the_next_one(
    repository: Repository, make_job: MakeJob
) -> None:
    make_job()
    repository.memberships.report("job-1", a_membership(epoch=1))
    add_samples(repository, "job-1", [a_sample(step=90)], 1.0)
    repository.memberships.report("job-1", a_membership(epoch=2, step=90, cause="resume"))
    add_samples(repository, "job-1", [a_sample(membership_epoch=3, step=81)], 2.0)
    repository.memberships.report("job-1", a_membership(epoch=3, step=80, cause="resume"))
    assert [each.lost_steps for each in repository.memberships.of_job("job-1")] == [0, 0, 10]


def test_a_rollback_keeps_what_the_new_membership_told_already(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    repository.memberships.report("job-1", a_membership(epoch=1))
    add_samples(repository, "job-1", [a_sample(step=100)], 1.0)
    again = a_sample(membership_epoch=2, step=95, loss=2.75, data_epoch=0.25)
    without = a_sample(membership_epoch=2, sequence=1, step=96, loss=None, data_epoch=0.5)
    add_samples(repository, "job-1", [again, without], 2.0)  # overtook the report
    assert repository.jobs.get("job-1").step == 100
    repository.memberships.report("job-1", a_membership(epoch=2, step=90, lost_steps=10, cause="server_lost"))
    job = repository.jobs.get("job-1")
    assert (job.step, job.epoch, job.loss) == (96, 0.5, 2.75)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, 40.0),
        ({"pause_seconds": 2.0}, 2.0),
        ({"workers": ("job-1-worker-0-0", "job-1-worker-1-1")}, None),
        ({"step": 120}, None),
        ({"at": 19.0}, None),
    ],
    ids=["all tasks ended", "the coordinator knows", "one went on", "it made more steps", "samples came after it"],
)
def test_how_long_tasks_that_ended_with_their_coordinator_stood_still_is_known(
    repository: Repository, make_job: MakeJob, changes: dict[str, Any], told: float | None
) -> None:
    make_job()
    repository.memberships.report("job-1", a_membership(epoch=1))
    add_samples(repository, "job-1", [a_sample(step=100)], 20.0)
    values: dict[str, Any] = {
        "at": 60.0,
        "step": 90,
        "lost_steps": 10,
        "workers": ("job-1-worker-0-1", "job-1-worker-1-1"),
    }
    again = a_membership(epoch=2, **(values | {"cause": "coordinator_restart"} | changes))
    repository.memberships.report("job-1", again)
    assert repository.memberships.of_job("job-1")[-1].pause_seconds == told


def test_interruptions_of_all_jobs_are_counted(repository: Repository, make_job: MakeJob) -> None:
    assert repository.memberships.interruptions(0.0, 1000.0) == (0, 0.0)
    make_job(at=100.0)
    make_job("job-2", at=200.0)
    make_job("waits", at=300.0)
    for job_id, started_at in (("job-1", 500.0), ("job-2", 600.0)):
        repository.memberships.report(job_id, a_membership(job_id=job_id, epoch=1))
        repository.jobs.advance(job_id, MembershipFormed(1), started_at)
    for epoch, cause in enumerate(("rescale", "worker_lost", "server_lost", "pause"), start=2):
        repository.memberships.report("job-1", a_membership(epoch=epoch, cause=cause))
    repository.jobs.advance("job-2", ResultReported(Outcome.FAILED, 1, error="boom", permanent=True), 650.0)
    assert repository.memberships.interruptions(0.0, 1000.0) == (2, 550.0)
    assert repository.memberships.interruptions(150.0, 1000.0) == (0, 50.0), "jobs that were submitted later"


def test_a_late_report_of_an_ended_job_is_kept_but_nothing_runs(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    repository.jobs.advance("job-1", CancelRequested(), 1.0)
    assert repository.memberships.report("job-1", a_membership())
    assert repository.jobs.get("job-1").running == NOTHING


def test_only_known_jobs_have_memberships(repository: Repository) -> None:
    with pytest.raises(JobNotFound):
        repository.memberships.report("ghost", a_membership("ghost"))
    assert repository.memberships.of_job("ghost") == []
