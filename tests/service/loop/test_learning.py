"""What a job that ended teaches about the next one of its kind: from its samples, through the database, to a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.service.loop.loop_world import World, speed
from tests.service.seeing.previews import preview_of
from tests.service.store.store_builders import batches_of, samples_of

from optimus_models.calibration import NO_EXPERIENCE
from optimus_models.speed.boundary import Boundary
from optimus_models.speed.course import MOST_PARTS
from optimus_scheduler.forecast.priors import EndedJobs
from optimus_scheduler.forecast.speed_fits import SpeedData, fit_speeds
from optimus_scheduler.lifecycle import CancelRequested
from optimus_scheduler.model import (
    COMMAND_ENDS,
    Allocation,
    Directive,
    EndedJob,
    Job,
    JobSpec,
    JobState,
    Mode,
    Nodes,
    SilentRun,
    SpeedSample,
)
from optimus_scheduler.retries import Backoff
from optimus_scheduler.settings import Settings
from optimus_service.insight.predictions.predictions import HistoryCache, Question, predictions_body
from optimus_service.observe.finished_runs import FinishedRunHistory, ended_job, finished_run_of
from optimus_service.observe.histories import Histories
from optimus_service.observe.jobs import job_of
from optimus_service.observe.snapshot import ClusterState, Observer
from optimus_service.observe.spec import readable_spec, spec_of
from optimus_service.observe.standstills import rescale_seconds
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import DecisionRecord, JobRecord, MembershipRecord
from optimus_service.store.repository import Repository

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def latest(world: World, job_id: str) -> DecisionRecord:
    decision = world.repository.rounds.latest_decisions([job_id]).get(job_id)
    assert decision is not None
    return decision


def known(repository: Repository, like: str = "job-1") -> tuple[EndedJob, ...]:
    finished_runs = FinishedRunHistory(repository, 1e6)
    finished_runs.refresh()
    return finished_runs.similar_to(spec_of(repository.jobs.get(like)).family)


def finish(world: World, job_id: str, **changes: object) -> None:
    world.submit(job_id, **changes)
    world.live_until(f"{job_id} has ended", lambda: world.state(job_id).is_final)
    world.round()


def test_the_next_job_of_a_task_knows_what_the_first_one_did(world: World) -> None:
    finish(world, "job-1")
    (taught,) = known(world.repository)
    assert (taught.id, taught.task, taught.project) == ("job-1", "m:f", "default")
    assert taught.judged_from == world.settings.scheduling.convergence_points
    assert taught.losses[0] > taught.losses[-1]
    assert {(sample.workers, sample.servers) for sample in taught.speed_samples} >= {(1, 1)}
    assert taught.rescale_seconds == rescale_seconds(world.repository.memberships.of_job("job-1"))[-4:] != ()

    world.submit("job-2")
    world.round()
    assert latest(world, "job-2").forecast.speed_from == "similar jobs"
    world.train(40)
    world.round()
    forecast = latest(world, "job-2").forecast
    assert forecast.speed_from == "measured"
    assert forecast.finished_runs == 1
    assert forecast.finished_runs_share > 0.5
    # The same job again: it will end where the first one did.
    assert forecast.total_steps is not None
    assert forecast.total_steps.mean == pytest.approx(world.repository.jobs.get("job-1").step, rel=0.25)


def test_a_job_that_was_deleted_teaches_no_more(world: World) -> None:
    finished_runs = FinishedRunHistory(world.repository, 1e6)
    for name in ("job-1", "job-2", "job-3"):
        finish(world, name)
    family = spec_of(world.repository.jobs.get("job-1")).family
    finished_runs.refresh()
    assert [each.id for each in finished_runs.similar_to(family)] == ["job-1", "job-2", "job-3"]
    world.repository.retention.delete_job("job-2")
    finish(world, "job-4")
    finished_runs.refresh()
    assert [each.id for each in finished_runs.similar_to(family)] == ["job-1", "job-3", "job-4"]
    world.repository.retention.delete_job("job-1")
    finished_runs.refresh()
    assert [each.id for each in finished_runs.similar_to(family)] == ["job-3", "job-4"]


@once
def test_what_a_job_taught_is_known_before_a_round_has_stored_it(world: World) -> None:
    """To whoever says what the next round decides; as long as the job is there."""
    known = world.known.finished_runs
    assert known is not None

    def seen() -> list[str]:
        for _ in range(2):
            preview_of(world).what_gives_more("waits", dict)
        return [each.id for each in known.similar_to("m:f")]

    world.submit("waits", workers={"min": 99, "max": 99})
    for name in ("job-1", "job-2"):
        world.submit(name)
        world.live_until(f"{name} has ended", lambda name=name: world.state(name).is_final)  # type: ignore[misc]
        if name == "job-1":
            assert seen() == ["job-1"]
            before = known.similar_to("m:f")
            world.round()
            assert known.similar_to("m:f") == before, "the very same is stored then"
            assert seen() == ["job-1"]
    assert seen() == ["job-1", "job-2"]
    world.repository.retention.delete_job("job-2")
    assert seen() == ["job-1"]


@once
def test_the_same_script_with_other_arguments_is_not_the_same_work(world: World) -> None:
    script: dict[str, Any] = {
        "task": None,
        "architecture": "script",
        "working_directory": "/srv",
        "servers": {"min": 0, "max": 0},
    }
    command = ["python", "-u", "train.py", "--width"]
    finish(world, "job-1", **script, command=[*command, "8"])
    (taught,) = known(world.repository)
    assert (taught.task, taught.arguments) == ("/srv/train.py", ("--width", "8"))
    factors = {}
    for width in ("8", "9"):
        record = world.submit(f"width-{width}", **script, command=[*command, width])
        job = Job(record.id, spec_of(record), record.state, record.created_at, similar=(taught,))
        speeds = fit_speeds(SpeedData.of(job, Settings()))
        (low,), (high,) = speeds.model.predict_interval([1], [0])
        factors[width] = high / low
    assert factors["8"] < 2.0 < 5.0 < factors["9"]


@once
def test_a_script_whose_workers_each_do_all_of_the_work_is_told_its_speed(world: World) -> None:
    """By the dry run, by the round after it, and by the table of sizes: more workers are no faster."""
    world.pace = lambda workers, servers: 6.0
    script: dict[str, Any] = {
        "task": None,
        "architecture": "script",
        "working_directory": "/srv",
        "servers": {"min": 0, "max": 0},
    }
    command = ["python", "-m", "train", "--epochs"]
    for epochs, workers in enumerate((1, 1, 2, 1, 2, 2), start=2):
        sizes = {"min": workers, "max": workers}
        finish(world, f"job-{epochs}", **script, command=[*command, str(epochs)], workers=sizes)
    asked: dict[str, Any] = {**script, "command": [*command, "9"], "workers": {"min": 1, "max": 1}}
    record = world.submit("new", **asked)
    promised = preview_of(world).of(record.spec, {}).forecast
    assert promised.speed_from == "similar jobs"
    world.round()
    world.round()  # with the size that it was given
    forecast = latest(world, "new").forecast
    assert forecast.steps_per_second == promised.steps_per_second == pytest.approx(6.0, rel=0.1)

    finished_runs, constants = FinishedRunHistory(world.repository, 1e6), world.settings.scheduling
    finished_runs.refresh()
    record = world.repository.jobs.get("new")
    job = HistoryCache(world.repository, finished_runs, constants).job(record, [], world.clock())
    counts = range(1, 5)
    job = replace(job, spec=replace(job.spec, may_grow=True))
    body = predictions_body(record, job, [latest(world, "new")], Question(counts, range(1), world.clock()), constants)
    speeds = {each.workers: each.steps_per_second for each in body.speeds}
    assert speeds[1] == pytest.approx(forecast.steps_per_second)
    assert speeds[2] == pytest.approx(6.0, rel=0.15)


@once
def test_rounds_and_predictions_know_where_a_job_leaves_a_node(world: World) -> None:
    ring = {"architecture": "allreduce", "servers": {"min": 0, "max": 0}, "workers": {"min": 1, "max": 64}}
    record = world.submit("job-1", **ring)
    constants, finished_runs = world.settings.scheduling, FinishedRunHistory(world.repository, 1e6)
    nodes, need = world.cluster.nodes(), spec_of(record).worker.resources
    observer = Observer(world.repository, Histories(world.repository), constants, finished_runs)
    (seen,) = observer.look(ClusterState.of(world.cluster), world.clock()).jobs
    asked = HistoryCache(world.repository, finished_runs, constants).job(record, [], world.clock(), nodes)
    assert seen.boundary == asked.boundary == Boundary(Nodes.of(nodes).most_on_one(need))


@once
@pytest.mark.parametrize(("command", "teaches"), [(["python", "-c", "train()"], True), (["python", "-"], False)])
def test_code_that_nobody_can_tell_teaches_nothing(world: World, command: list[str], teaches: bool) -> None:
    script = {"task": None, "architecture": "script", "working_directory": "/srv", "servers": {"min": 0, "max": 0}}
    finish(world, "job-1", **script, command=command)
    assert bool(known(world.repository)) is teaches


@once
def test_what_a_command_announced_is_learned_where_it_ended_by_itself(world: World) -> None:
    command = {"task": None, "architecture": "script", "command": ["python", "train.py"], "working_directory": "/srv"}
    finish(world, "job-1", **command, servers={"min": 0, "max": 0})
    history = JobHistory(Mode.SYNC)
    history.add(batches_of(samples_of(world.repository, "job-1")))
    record = world.repository.jobs.get("job-1")
    record = replace(record, profile={**(record.profile or {}), "total_steps": 2000})
    ended_at = (record.step_at or 0.0) + 45.0
    record = replace(record, finished_at=ended_at)
    for directive, step, announced, after in (
        (Directive.RUN, 300, 2000, None),
        (Directive.RUN, 2000, 2000, 45.0),
        (Directive.RUN, 2100, 2000, 45.0),
        (Directive.FINISH, 300, None, None),
    ):
        taught = ended_job("job-1", finished_run_of(replace(record, directive=directive, step=step), history))
        assert taught is not None
        assert (taught.total_steps, taught.announced_steps) == (step, announced)
        assert taught.seconds_after_steps == (None if after is None else pytest.approx(after))
    tells_no_end = replace(record, profile=None, step=300, directive=Directive.RUN)
    taught = ended_job("job-1", finished_run_of(tells_no_end, history))
    assert taught is not None
    assert taught.seconds_after_steps == pytest.approx(45.0), "it announces nothing, and ended by itself"


@once
def test_which_part_of_its_rule_ended_a_job_is_learned(world: World) -> None:
    command = {"task": None, "architecture": "script", "command": ["python", "train.py"], "working_directory": "/srv"}
    finish(world, "job-1", **command, servers={"min": 0, "max": 0})
    history = JobHistory(Mode.SYNC)
    history.add(batches_of(samples_of(world.repository, "job-1")))
    record = replace(world.repository.jobs.get("job-1"), step=300, epoch=3.0, started_at=100.0, finished_at=150.0)

    def taught(rule: dict[str, Any], directive: Directive = Directive.RUN, **changes: object) -> EndedJob:
        said = replace(record, spec={**record.spec, "convergence": rule}, directive=directive, **changes)  # type: ignore[arg-type]
        found = ended_job("job-1", finished_run_of(said, history))
        assert found is not None
        return found

    target = {"target_loss": 0.5}
    assert taught({"command_ends": True}).ended_by == COMMAND_ENDS
    assert taught(target).ended_by == COMMAND_ENDS, "before its loss came to the target"
    assert taught(target, Directive.FINISH).ended_by == "target_loss"
    assert taught({**target, "max_seconds": 60.0}, Directive.FINISH).ended_by == "target_loss"
    assert taught({**target, "max_seconds": 50.0}, Directive.FINISH).ended_by == "max_seconds"
    assert taught({**target, "max_cost": 1.0}, Directive.FINISH).ended_by is None, "one of the two"
    assert taught({**target, "max_steps": 300}).ended_by == "max_steps"
    assert taught({"max_epochs": 3.0}).ended_by == "max_epochs"
    as_announced = {**(record.profile or {}), "total_steps": 300}
    assert taught({"max_steps": 300}, profile=as_announced).ended_by == COMMAND_ENDS
    beyond = {**as_announced, "total_steps": 2000}
    limited = taught({"max_epochs": 3.0}, profile=beyond)
    assert (limited.ended_by, limited.announced_steps) == ("max_epochs", None), "it has not ended early by itself"


@once
def test_of_a_command_that_told_no_step_its_length_is_learned(world: World) -> None:
    script = {"task": None, "architecture": "script", "working_directory": "/srv", "servers": {"min": 0, "max": 0}}
    submitted = world.submit("job-1", **script, command=["python", "train.py"])
    record = replace(submitted, state=JobState.SUCCEEDED, finished_at=150.0)
    began = MembershipRecord(
        job_id=record.id,
        epoch=1,
        generation=1,
        at=110.0,
        step=0,
        workers=("worker-0",),
        servers=(),
        cause="start",
    )
    (taught,) = EndedJobs([silent(record, began)]).of("/srv/train.py")
    assert taught.silent == SilentRun(1, 0, 40.0)
    assert finished_run_of(record, JobHistory(Mode.SYNC), memberships=(began, replace(began, epoch=2))) == {}, (
        "begun twice"
    )
    assert silent(replace(record, step=1), began).silent == SilentRun(1, 0, 40.0), "no speed was measured"


def silent(record: JobRecord, began: MembershipRecord) -> EndedJob:
    taught = ended_job(record.id, finished_run_of(record, JobHistory(Mode.SYNC), memberships=(began,)))
    assert taught is not None
    return taught


@once
def test_how_often_a_script_tells_its_steps_is_learned(world: World) -> None:
    """So that its next run is known to train on before it has told any."""
    finish(world, "job-1")
    record, spec = world.repository.jobs.get("job-1"), readable_spec(world.repository.jobs.get("job-1"))
    assert spec is not None
    history = JobHistory(Mode.SYNC)
    history.add(batches_of(samples_of(world.repository, "job-1")))
    taught = ended_job("job-1", finished_run_of(record, history))
    assert taught is not None
    assert taught.report_seconds == history.report_seconds > 0

    def again(known: JobHistory, arguments: tuple[str, ...]) -> Job:
        asked = replace(spec, arguments=arguments)
        began = replace(record, step=0, step_at=None, formed_at=50.0)
        others: dict[str, Any] = {"calculated_speeds": (), "experience": NO_EXPERIENCE, "spent": 0.0, "batch": None}
        similar = (replace(taught, arguments=("--lr", "1"), report_seconds=60.0),)
        return job_of(
            began, asked, (), known, backoff=Backoff(), similar=similar, allocation=Allocation(1, 1), **others
        )

    anew = again(JobHistory(Mode.SYNC), ("--lr", "1"))
    assert (anew.silent_since, anew.report_seconds) == (50.0, 60.0)
    assert again(JobHistory(Mode.SYNC), ("--lr", "2")).report_seconds == 0.0
    assert again(history, ("--lr", "1")).report_seconds == history.report_seconds, "its own are known"


@once
def test_what_a_run_spent_between_its_steps_is_learned(world: World) -> None:
    """So that the next one counts evaluations before it has made any."""
    finish(world, "job-1")
    record, history = world.repository.jobs.get("job-1"), JobHistory(Mode.SYNC)
    spec = readable_spec(record)
    assert spec is not None
    history.add(batches_of(samples_of(world.repository, "job-1")))
    history.pauses.busy_seconds, history.pauses.seconds = 80.0, 100.0
    taught = ended_job("job-1", finished_run_of(record, history))
    assert taught is not None
    assert (taught.busy_seconds, taught.reported_seconds) == (80.0, 100.0)
    begun = JobHistory(Mode.SYNC)
    others: dict[str, Any] = {"calculated_speeds": (), "experience": NO_EXPERIENCE, "spent": 0.0, "batch": None}
    for seconds, similar, part in ((0.0, (taught,), 0.8), (100.0, (taught,), 0.9), (100.0, (), 1.0), (0.0, (), 1.0)):
        begun.pauses.busy_seconds = begun.pauses.seconds = seconds
        found = job_of(
            record, spec, (), begun, backoff=Backoff(), similar=similar, allocation=Allocation(1, 1), **others
        )
        assert found.busy_part == pytest.approx(part)


@once
def test_a_service_that_was_away_learns_from_what_ended_meanwhile(world: World) -> None:
    world.submit()
    world.round()
    world.live_until("it converges", lambda: latest(world, "job-1").reason == "Converged")
    world.train(2)  # the coordinator finishes the job; no round follows
    assert world.state() is JobState.SUCCEEDED
    again = world.restarted()
    assert known(again.repository) == ()
    again.round()
    (taught,) = known(again.repository)
    assert len(taught.losses) > 5
    again.round()
    assert len(again.repository.finished_runs.after(0, 10)) == 1, "learned once"


@once
def test_it_can_be_switched_off(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path, learn_from_finished_jobs=False)
    finish(world, "job-1")
    finish(world, "job-2")
    assert world.repository.finished_runs.after(0, 10) == []
    assert latest(world, "job-2").forecast.finished_runs == 0


@once
def test_a_job_that_was_cancelled_teaches_nothing(world: World) -> None:
    world.submit()
    world.round()
    world.train(30)
    world.repository.jobs.advance("job-1", CancelRequested(), world.clock())
    world.live_until("it is gone", lambda: world.state().is_final)
    world.round()
    assert world.repository.finished_runs.after(0, 10) == []


@once
def test_a_job_that_knows_no_epochs_teaches_its_speeds(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path)
    world.steps_per_epoch = None
    finish(world, "job-1", convergence={"max_seconds": 60})
    (taught,) = known(repository)
    assert taught.steps_per_epoch is None
    assert {(sample.workers, sample.servers) for sample in taught.speed_samples} >= {(1, 1)}
    world.submit("job-2", convergence={"max_seconds": 60})
    world.round()
    assert latest(world, "job-2").forecast.speed_from == "similar jobs"


@once
def test_jobs_of_other_tasks_are_not_similar(world: World) -> None:
    finish(world, "job-1")
    world.submit("other", task="m:g")
    assert known(world.repository, like="other") == ()


def test_nothing_taught_is_nothing_known() -> None:
    assert ended_job("job-1", {}) is None


@once
def test_what_was_taught_is_forgotten_with_the_samples(world: World) -> None:
    finish(world, "job-1")
    pruned = world.repository.retention.prune(world.clock() + 100.0, keep_seconds=50.0)
    assert pruned.finished_runs == 1
    assert world.repository.finished_runs.after(0, 10) == []


# --- rules about a metric and about money ----------------------------------------------------------------------------

ACCURACY = {"target_metric": {"name": "test_accuracy", "at_least": 0.9}}


@once
def test_a_job_ends_when_its_metric_has_been_reached(world: World) -> None:
    world.accuracy_at = lambda epoch: 1.0 - 0.5 / (1.0 + 0.25 * epoch)  # 0.9 after 16 epochs
    world.submit(convergence=ACCURACY)
    world.live_until("the job has ended", lambda: world.state().is_final)
    job = world.repository.jobs.get("job-1")
    assert job.state is JobState.SUCCEEDED
    assert 16 * 20 <= job.step <= 30 * 20
    forecasts = [decision.forecast for decision in world.repository.rounds.decisions("job-1").items]
    assert forecasts[0].rule == "target_metric"
    assert any(each.rule == "target_metric" and not each.converged for each in forecasts), "it was foreseen"


@once
def test_a_job_ends_when_its_budget_is_used_up(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path, price_per_core_hour=3600.0)  # 1 a second and core
    world.submit(convergence={"max_cost": 200.0}, workers={"max": 2}, servers={"max": 2})
    world.live_until("the job has ended", lambda: world.state().is_final)
    decision = latest(world, "job-1")
    assert decision.forecast.rule == "max_cost"
    memberships = world.repository.memberships.of_job("job-1")
    ends = [later.at for later in memberships[1:]] + [decision.at]
    held = [
        (len(each.workers) + len(each.servers)) * (end - each.at) for each, end in zip(memberships, ends, strict=True)
    ]
    # A round notices: here they are five seconds apart, with four tasks at most.
    assert 200.0 <= sum(held) <= 200.0 + 4 * 6.0


# --- before the first step -------------------------------------------------------------------------------------------

PERCEPTRON = {
    "format": "optimus-network/1",
    "name": "mlp",
    "layers": [
        {"name": "x", "kind": "input", "parents": [], "shape": [4096]},
        {"name": "hidden", "kind": "linear", "parents": ["x"], "features": 4096},
        {"name": "out", "kind": "linear", "parents": ["hidden"], "features": 10},
    ],
}


@once
def test_a_speed_is_calculated_until_one_is_measured(world: World) -> None:
    world.submit()
    world.round()
    world.train(0)  # the first membership is formed, no step is made
    world.round()
    assert latest(world, "job-1").forecast.speed_from is None
    world.repository.jobs.put_network("job-1", PERCEPTRON)
    world.round()
    calculated = latest(world, "job-1").forecast
    assert calculated.speed_from == "analysis"
    # 17 million parameters: three passes over 32 examples and the memory of one core, and the way there and back.
    assert 0.5 < (calculated.steps_per_second or 0.0) < 20.0
    assert calculated.seconds_per_step is None, "no time is predicted by it"
    assert calculated.remaining_seconds is None
    world.train(30)
    world.round()
    measured = latest(world, "job-1").forecast
    assert measured.speed_from == "measured"
    assert measured.steps_per_second == pytest.approx(speed(1, 1), rel=0.2)


@once
def test_what_is_calculated_of_a_job_is_as_after_a_restart(world: World) -> None:
    """By what ended jobs have reached until now, and by what its owner asks for now."""
    world.compute_share = 0.9
    world.submit()
    world.submit("other", task="m:g", global_batch_size=32)
    for job_id in ("job-1", "other"):
        world.repository.jobs.put_network(job_id, PERCEPTRON)
    record, known_runs = world.repository.jobs.get("other"), world.known.finished_runs
    assert known_runs is not None

    def calculated(runs: FinishedRunHistory, spec: JobSpec) -> tuple[SpeedSample, ...]:
        runs.refresh()
        return runs.calculated_speeds(record, spec)

    at_first, spec = calculated(known_runs, spec_of(record)), spec_of(record)
    world.live_until("the job has ended", lambda: world.state().is_final)
    world.round()
    for asked in (spec, replace(spec, global_batch_size=64)):
        now = calculated(known_runs, asked)
        assert now == calculated(FinishedRunHistory(world.repository, 1e9), asked) != at_first
        at_first = now


@once
def test_ended_jobs_tell_which_part_of_the_peak_the_platform_reaches(world: World) -> None:
    world.compute_share = 0.9
    world.submit()
    world.round()
    world.repository.jobs.put_network("job-1", PERCEPTRON)
    world.live_until("the job has ended", lambda: world.state().is_final)
    world.round()
    (taught,) = known(world.repository)
    assert taught.device == "CPU core"
    assert taught.percent_of_peak is not None
    assert 0.001 < taught.percent_of_peak < 1.0
    # Another task with the same layers is calculated with what this one reached.
    world.submit("other", task="m:g")
    world.round()
    world.train(0)
    world.repository.jobs.put_network("other", PERCEPTRON)
    world.round()
    forecast = latest(world, "other").forecast
    assert forecast.speed_from == "analysis"
    assert forecast.steps_per_second == pytest.approx(speed(1, 1), rel=0.7)


@once
def test_how_long_the_parts_of_a_run_took_is_learned(world: World) -> None:
    """Of one that had a single size all the time."""
    finish(world, "job-1", workers={"max": 1}, servers={"max": 1})
    (taught,) = known(world.repository)
    assert 2 <= len(taught.pace_steps) == len(taught.pace_seconds) <= MOST_PARTS
    each = taught.pace_seconds[0]
    assert 1.0 / speed(1, 1) <= each <= 1.2 / speed(1, 1)
    assert taught.pace_seconds == pytest.approx([each] * len(taught.pace_seconds), rel=0.05)
    finish(world, "job-2", workers={"max": 4}, servers={"max": 4})
    assert len(world.repository.memberships.of_job("job-2")) > 1
    assert known(world.repository)[-1].pace_steps == (), "its size changed on the way"


@once
def test_what_an_older_release_learned_tells_no_course(world: World) -> None:
    finish(world, "job-1", workers={"max": 1}, servers={"max": 1})
    record, history = world.repository.jobs.get("job-1"), JobHistory(Mode.SYNC)
    history.add(batches_of(samples_of(world.repository, "job-1")))
    document = finished_run_of(record, history)
    del document["course"]
    taught = ended_job("job-1", document)
    assert taught is not None
    assert (taught.pace_steps, taught.pace_seconds) == ((), ())
