"""Rounds and jobs that run outside the cluster: forecast and judged, never given anything."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.loop.loop_world import World, loss_at
from tests.service.loop.test_learning import latest
from tests.service.store.store_builders import add_samples

from optimus_contract.telemetry import Sample
from optimus_scheduler.lifecycle import CancelRequested, MembershipFormed, Outcome, ResultReported
from optimus_scheduler.model import JobState, Resources
from optimus_scheduler.settings import Settings
from optimus_service.metrics.points import ClusterMetrics
from optimus_service.metrics.read import metrics_reader
from optimus_service.observe.shown_predictions import verdicts
from optimus_service.observe.silence import (
    COMPLETE_SECONDS,
    END_NOT_TOLD,
    LONGEST_TIMES,
    SILENT_SECONDS,
    UNHEARD_SECONDS,
)
from optimus_service.observe.spec import RUN_LABEL
from optimus_service.store.records import MembershipRecord

SECONDS = 2.0
"""Of one step."""


class Run:
    """A run outside, with its tracker."""

    def __init__(self, world: World, job_id: str, workers: int = 2, script: str = "train.py", **spec: object) -> None:
        self.world, self.id, self.workers, self.step = world, job_id, workers, 0
        size = {"min": workers, "max": workers}
        spec = {"task": None, "tracked": True, "workers": size, "servers": {}, "convergence": {}, **spec}
        world.submit(job_id, command=["python", script], **spec)
        self.report()
        with world.repository.write() as tx:
            tx.jobs.advance(job_id, MembershipFormed(1), world.clock())

    def report(self) -> None:
        names = tuple(f"{self.id}-worker-{rank}-0" for rank in range(self.workers))
        record = MembershipRecord(
            job_id=self.id,
            epoch=1,
            generation=0,
            at=self.world.clock(),
            step=0,
            workers=names,
            servers=(),
            cause="start",
        )
        self.world.repository.memberships.report(self.id, record)
        self.world.repository.memberships.heard(self.id, self.world.clock())

    def train(self, n_steps: int, total: int | None = 1000, seconds: float = SECONDS) -> None:
        repository, clock = self.world.repository, self.world.clock
        samples = []
        for _ in range(n_steps):
            clock.now += SECONDS
            self.step += 1
            samples.append(
                Sample(
                    membership_epoch=1,
                    rank=0,
                    sequence=self.step,
                    workers=self.workers,
                    servers=0,
                    at=clock.now,
                    step=self.step,
                    data_epoch=self.step / 20,
                    loss=loss_at(self.step),
                    n_examples=0,
                    seconds=seconds,
                )
            )
        repository.jobs.put_profile(self.id, {"total_steps": total, "steps_per_epoch": 20.0, "learned_from": "printed"})
        add_samples(repository, self.id, samples, clock.now)
        self.report()

    def end(self) -> None:
        end = ResultReported(Outcome.SUCCEEDED, self.step)
        self.world.repository.jobs.advance(self.id, end, self.world.clock())


def test_a_run_is_forecast_and_nothing_is_started_for_it(world: World) -> None:
    run = Run(world, "run", workers=500)
    run.train(100)
    world.round()
    decision = latest(world, "run")
    assert decision.reason == "Tracked"
    assert decision.allocation.workers == 500
    total, left = decision.forecast.total_steps, decision.forecast.remaining_seconds
    assert total is not None
    assert left is not None
    assert total.mean == 1000
    assert left.mean == pytest.approx(900 * SECONDS, rel=0.01)
    assert world.cluster.tasks() == ()
    assert world.repository.jobs.get("run").wanted.is_empty


def test_it_takes_nothing_from_the_jobs_of_the_cluster(world: World) -> None:
    world.submit("job-1")
    world.round()
    alone = latest(world, "job-1")
    run = Run(world, "run")
    run.train(3)
    world.round()
    assert latest(world, "job-1").allocation == alone.allocation


def test_cancelling_ends_the_watching(world: World) -> None:
    run = Run(world, "run")
    run.train(10)
    world.repository.jobs.advance("run", CancelRequested(), world.clock())
    world.round()
    assert world.state("run") is JobState.CANCELLED


def test_a_run_that_is_not_heard_of_any_more_has_failed(world: World) -> None:
    run = Run(world, "run")
    run.train(10)
    world.round()
    world.clock.now += SILENT_SECONDS - 10.0
    world.round()
    assert world.state("run") is JobState.RUNNING
    run.report()
    heard_at = world.clock.now
    world.clock.now += SILENT_SECONDS - 10.0
    world.round()
    assert world.state("run") is JobState.RUNNING, "it was heard of between"
    world.clock.now += 20.0
    world.round()
    job = world.repository.jobs.get("run")
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert "nothing was heard of it for 60 min" in job.failure
    assert job.finished_at == job.heard_at == heard_at, "what was waited for more is none of its time"


WATCHED: dict[str, Any] = {"labels": {RUN_LABEL: ""}}


def test_a_run_that_a_library_tells_of_may_be_silent_as_long_as_it_usually_is(world: World) -> None:
    quick, slow, unheard = (
        Run(world, "quick", **WATCHED),
        Run(world, "slow", **WATCHED),
        Run(world, "unheard", **WATCHED),
    )
    quick.train(5)
    slow.train(1)
    world.clock.now += SILENT_SECONDS
    slow.train(1, seconds=SILENT_SECONDS)
    quick.report()
    unheard.report()
    world.round()
    world.clock.now += SILENT_SECONDS + 10.0
    world.round()
    assert [world.state(each.id) for each in (quick, slow, unheard)] == [
        JobState.FAILED,
        JobState.RUNNING,
        JobState.RUNNING,
    ]
    world.clock.now += LONGEST_TIMES * SILENT_SECONDS
    world.round()
    assert (world.state("slow"), world.state("unheard")) == (JobState.FAILED, JobState.RUNNING)
    world.clock.now += UNHEARD_SECONDS
    world.round()
    assert world.state("unheard") is JobState.FAILED


def test_a_run_that_made_all_its_steps_and_says_no_more_has_succeeded(world: World) -> None:
    run = Run(world, "run", **WATCHED)
    world.round()
    run.train(6, total=10)
    world.round()
    run.train(4, total=10)
    ended_at = world.clock.now
    world.round()
    world.clock.now += COMPLETE_SECONDS - 10.0
    world.round()
    assert world.state("run") is JobState.RUNNING
    world.clock.now += 20.0
    world.round()
    assert world.state("run") is JobState.SUCCEEDED
    job = world.repository.jobs.get("run")
    assert job.finished_at == ended_at, "as of its last step, not of when its silence was long enough"
    kept = world.repository.shown_predictions.ended(0.0, 100)
    judged = {each.prediction.at: each for verdict in verdicts(kept) for each in kept if verdict.kind == "seconds"}
    assert judged, "what was predicted of it is judged by that end"
    assert all(each.finished_at == ended_at for each in judged.values())
    events = world.repository.events.page("run").items
    (told,) = [each for each in events if each.type == END_NOT_TOLD]
    assert "all its 10 steps" in told.message
    assert told.at == ended_at


def test_a_service_that_was_away_for_long_listens_first(world: World) -> None:
    run = Run(world, "run")
    run.train(10)
    world.clock.now += 3 * SILENT_SECONDS
    again = world.restarted()
    again.round()
    assert again.state("run") is JobState.RUNNING


def test_it_is_not_ended_by_a_rule_of_its_own(world: World) -> None:
    run = Run(world, "run", convergence={"max_steps": 5})
    run.train(10, total=None)
    world.round()
    assert world.state("run") is JobState.RUNNING
    assert world.repository.jobs.get("run").directive.value == "run"


def test_runs_of_one_script_teach_the_next_and_those_of_another_do_not(world: World) -> None:
    first = Run(world, "first", working_directory="/home/ann/nets")
    first.train(200, total=None)
    first.end()
    world.round()
    world.round()
    for job_id, folder in (("same", "/home/ann/nets"), ("other", "/home/bob/nets")):
        run = Run(world, job_id, working_directory=folder, convergence={"loss_decrease": {"below": 0.01}})
        run.train(40, total=None)
    world.round()
    assert latest(world, "same").forecast.finished_runs == 1
    assert latest(world, "other").forecast.finished_runs == 0


def test_a_run_takes_nothing_of_the_cluster(world: World) -> None:
    run = Run(world, "job-1", workers=16)
    world.round()
    (running,) = world.repository.jobs.active()
    assert (running.id, running.running.workers) == (run.id, 16)
    metrics = metrics_reader(world.repository, world.clock, lambda: True, lambda: None, Settings())()
    assert isinstance(metrics, ClusterMetrics)
    assert metrics.used == Resources()
