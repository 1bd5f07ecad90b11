"""What ended jobs of the same task say about active ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, SpeedLaw, a_cluster, a_job, a_spec, law, samples

from optimus_models.convergence import converged_epoch
from optimus_models.speed.boundary import Boundary, Jumps
from optimus_models.speed.goodput import ElasticBatch
from optimus_models.speed.scaling import ScalingCurve
from optimus_scheduler.forecast.end import as_rule, epoch_steps
from optimus_scheduler.forecast.forecast import RememberingForecaster, forecast, forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.precedents import ends_under, with_precedents
from optimus_scheduler.forecast.priors import MAX_PER_TASK, MAX_TASKS, EndedJobs, counted_alike
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    EndedJob,
    Interval,
    Job,
    JobSpec,
    Mode,
    Nodes,
    Resources,
    SilentRun,
    SpeedSample,
    SpeedSource,
)
from optimus_scheduler.settings import Settings

STEPS = tuple(float(step) for step in range(10, 2010, 20))
SIX_SIZES = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (6, 3))


def dropping(level: float = 1.0, steps_per_epoch: float = 100.0) -> tuple[float, ...]:
    """Losses whose learning rate is lowered after twelve epochs."""
    epochs = np.array(STEPS) / steps_per_epoch
    losses = level * (1.0 / (epochs + 1.0) + 0.4) * np.where(epochs > 12, 0.3, 1.0)
    return tuple(losses.tolist())


def ended(name: str, *, level: float = 1.0, speed: SpeedLaw | None = None, **fields: object) -> EndedJob:
    job = EndedJob(name, "zoo:cnn", "vision", 100.0, STEPS, dropping(level), global_batch_size=64)
    measured = samples(speed, SIX_SIZES) if speed else ()
    return replace(job, speed_samples=measured, **fields)  # type: ignore[arg-type]


def young(*similar: EndedJob, measured: tuple[SpeedSample, ...] = (), n: int = 40, **fields: object) -> Job:
    spec = replace(a_spec(rule=ConvergenceRule(target_loss=0.17)), project="vision", family="zoo:cnn")
    return a_job(
        "young",
        has=(1, 1),
        spec=spec,
        measured=measured,
        step=int(STEPS[n - 1]),
        steps_per_epoch=100.0,
        loss_steps=STEPS[:n],
        losses=dropping()[:n],
        similar=similar,
        **fields,  # type: ignore[arg-type]
    )


def outlook_of(job: Job) -> Outlook:
    return forecast(job, NOW, Settings())


def ring_samples(sizes: tuple[int, ...], batch: int, *, reported: bool = True) -> tuple[SpeedSample, ...]:
    """An all-reduce job that computes 10 ms an example and exchanges for half a second."""
    parts = [(w, 0.01 * batch / w, 0.5 if w > 1 else 0.0) for w in sizes]
    return tuple(
        SpeedSample(w, 0, 1.0 / (computing + exchange), 100, NOW, exchange_seconds=exchange if reported else None)
        for w, computing, exchange in parts
    )


def ring_speedup(*, reported: bool) -> float:
    """Of 8 workers over 1, predicted for a batch of 800 by what an ended job did with a batch of 100."""
    others = replace(
        ended("a"), speed_samples=ring_samples((1, 2, 4, 8), 100, reported=reported), global_batch_size=100
    )
    others = replace(others, architecture=Architecture.ALLREDUCE)
    job = young(others, measured=ring_samples((1,), 800, reported=reported))
    spec = replace(job.spec, architecture=Architecture.ALLREDUCE, global_batch_size=800)
    speeds = outlook_of(replace(job, spec=spec)).speeds
    return speeds.at(Allocation(8, 0)) / speeds.at(Allocation(1, 0))


def test_rings_with_another_batch_tell_how_long_exchanging_takes() -> None:
    """The ended job was hardly faster with 8 workers: its batch was small. This one will be."""
    true = 8.0 / (1.0 + 0.5)
    assert ring_speedup(reported=True) == pytest.approx(true, rel=0.2)
    assert ring_speedup(reported=False) < 0.6 * true


@pytest.mark.parametrize("arguments", [(), ("lr=0.02", "batch=30")])
@pytest.mark.parametrize("is_elastic", [False, True])
def test_a_faster_ring_with_other_arguments_makes_no_size_faster_than_its_workers(
    arguments: tuple[str, ...], is_elastic: bool
) -> None:
    """One of 48 steps/s with half the batch made 3 workers 8.9 times as fast as 1, of a job of 3.7 steps/s."""
    batch = 60 if is_elastic else None

    def alone(speed: float) -> tuple[SpeedSample, ...]:
        return (SpeedSample(1, 0, speed, 100, NOW, exchange_seconds=0.0, batch=batch),)

    run = replace(ended("fast", speed=None), speed_samples=alone(48.0), arguments=arguments)
    run = replace(run, architecture=Architecture.ALLREDUCE, global_batch_size=60 if is_elastic else 30)
    job = young(run, measured=alone(3.7))
    elastic = ElasticBatch(60, 240, 60) if is_elastic else None
    spec = replace(job.spec, architecture=Architecture.ALLREDUCE, global_batch_size=60, elastic_batch=elastic)
    found = outlook_of(replace(job, spec=replace(spec, arguments=("slow=0.02",)))).speeds
    assert found.at(Allocation(1, 0)) == pytest.approx(3.7, rel=0.05)
    gain = found.compared(Allocation(3, 0), Allocation(1, 0))
    assert 1.0 < gain.low < gain.mean < 3.0


def test_a_drop_that_earlier_jobs_had_brings_the_end_nearer() -> None:
    alone, informed = outlook_of(young()), outlook_of(young(ended("a"), ended("b", level=0.7)))
    assert informed.forecast.total_steps is not None
    assert informed.forecast.total_steps.mean == pytest.approx(1230, rel=0.15)
    assert informed.forecast.finished_runs == 2
    assert 0.5 < informed.forecast.finished_runs_share <= 1.0
    assert alone.forecast.finished_runs == 0
    assert informed.forecast.rule == "target_loss"
    assert alone.forecast.rule is None  # nothing that it has seen leads there


def test_runs_are_compared_by_epochs() -> None:
    half_as_many = tuple(step / 2 for step in STEPS)
    same = outlook_of(young(ended("a")))
    other_batch = outlook_of(young(ended("b", steps_per_epoch=50.0, loss_steps=half_as_many)))
    assert same.forecast.total_steps is not None
    assert other_batch.forecast.total_steps is not None
    assert other_batch.forecast.total_steps.mean == pytest.approx(same.forecast.total_steps.mean, rel=1e-6)


def test_a_job_that_knew_no_epochs_teaches_its_speeds_only() -> None:
    fast = law(fixed=0.3)
    reported = ended("a", speed=fast, steps_per_epoch=None, loss_steps=(), losses=(), total_steps=900)
    alone, informed = outlook_of(young(n=3)), outlook_of(young(reported, n=3))
    assert informed.forecast.finished_runs == 0
    assert informed.forecast.total_steps == alone.forecast.total_steps
    assert informed.speeds.source is SpeedSource.SIMILAR_JOBS
    assert informed.speeds.at(Allocation(4, 4)) == pytest.approx(fast(4, 4), rel=0.1)
    # Who does not know its epochs yet is told by another one, though that is older.
    assert epoch_steps(replace(young(ended("b"), reported), steps_per_epoch=None)) == 100.0
    assert epoch_steps(replace(young(reported), steps_per_epoch=None)) is None


def test_runs_of_another_project_count_less() -> None:
    mine = outlook_of(young(ended("a"))).forecast.finished_runs_share
    theirs = outlook_of(young(ended("a", project="audio"))).forecast.finished_runs_share
    assert 0 < theirs < mine


def test_a_remembering_forecaster_notices_a_job_that_ended() -> None:
    forecaster = RememberingForecaster()
    for similar in ((), (ended("a"),), (ended("a"), ended("b")), ()):
        job = young(*similar)
        assert forecaster([job], NOW, Settings())[0].forecast == outlook_of(job).forecast


# --- speeds ----------------------------------------------------------------------------------------------------------


def error(outlook: Outlook, speed: SpeedLaw) -> float:
    ratios = [outlook.speeds.at(Allocation(w, p)) / speed(w, p) for w, p in ALL_SIZES]
    return float(np.mean(np.abs(np.array(ratios) - 1.0)))


def test_before_the_first_measurement_speeds_are_those_of_jobs_like_it() -> None:
    outlook = outlook_of(young(ended("a", speed=law())))
    assert outlook.speeds.source is SpeedSource.SIMILAR_JOBS
    assert outlook.forecast.speed_from == "similar jobs"
    assert error(outlook, law()) < 0.1
    assert outlook.forecast.remaining_seconds is not None


def test_a_measurement_sets_the_level_and_others_the_shape() -> None:
    slow = lambda w, p: 0.4 * law(compute=0.3, transfer=0.6)(w, p)  # noqa: E731 -- a law of its own
    others = ended("a", speed=law(compute=0.3, transfer=0.6))
    one = samples(slow, [(1, 1)])
    informed, alone = outlook_of(young(others, measured=one)), outlook_of(young(measured=one))
    assert informed.speeds.source is SpeedSource.MEASURED
    assert error(informed, slow) < 0.12
    assert error(informed, slow) < 0.5 * error(alone, slow)
    assert not informed.learning
    assert alone.learning


def slowed(times: float) -> SpeedLaw:
    return lambda w, p: law()(w, p) / times


def test_a_size_that_only_a_faster_job_measured_is_not_fast_for_that() -> None:
    slow = replace(ended("a"), speed_samples=samples(slowed(20.0), [(1, 1), (1, 2)]), arguments=("sleep=0.2",))
    fast = replace(ended("b"), speed_samples=samples(slowed(1.0), [(1, 1), (3, 1), (4, 4)]), arguments=("sleep=0",))
    one = samples(slowed(100.0), [(1, 1)])
    job = young(slow, fast, measured=one)
    speeds = outlook_of(replace(job, spec=replace(job.spec, arguments=("sleep=1",)))).speeds
    for size in ((3, 1), (4, 4)):
        assert speeds.at(Allocation(*size)) == pytest.approx(slowed(100.0)(*size), rel=0.25)


def test_sizes_of_runs_with_the_same_arguments_are_not_mixed_with_those_of_others() -> None:
    """They have no size in common; each has one with runs that were 60 times as fast."""
    one, three = samples(slowed(60.0), [(1, 1)]), samples(slowed(60.0), [(3, 1)])
    others = [
        ended("a", speed=slowed(1.0), arguments=("delay=0",)),
        replace(ended("b"), speed_samples=one, arguments=("delay=1",)),
        replace(ended("c"), speed_samples=three, arguments=("delay=1",)),
        replace(ended("d"), speed_samples=samples(slowed(0.8), [(1, 1)]), arguments=("delay=2",)),
    ]
    job = young(*others)
    speeds = outlook_of(replace(job, spec=replace(job.spec, arguments=("delay=1",)))).speeds
    for size in ((1, 1), (3, 1)):
        assert speeds.at(Allocation(*size)) == pytest.approx(slowed(60.0)(*size), rel=0.2)


def test_with_arguments_that_nobody_has_run_with_speeds_are_doubtful() -> None:
    others = [
        ended("a", speed=slowed(3.0), arguments=("depth=8",)),
        ended("b", speed=slowed(1.0), arguments=("depth=2",)),
    ]

    def estimate(depth: int) -> tuple[float, float, float]:
        job = young(*others)
        spec = replace(job.spec, arguments=(f"depth={depth}",))
        return outlook_of(replace(job, spec=spec)).speeds.estimate(Allocation(1, 1))

    mean, low, high = estimate(8)
    assert mean == pytest.approx(slowed(3.0)(1, 1), rel=0.1)
    assert high / low < 2.0
    mean, low, high = estimate(16)
    assert slowed(3.0)(1, 1) < mean < slowed(1.0)(1, 1)
    assert high / low > 4.0


def test_measurements_overrule_jobs_that_were_not_like_it_after_all() -> None:
    true, others = law(compute=0.8, per_task=0.0), ended("a", speed=law(compute=0.05, transfer=1.0))
    measured = samples(true, [(1, 1), (2, 2), (4, 4), (6, 6), (4, 2), (2, 4)])
    assert error(outlook_of(young(others, measured=measured)), true) < 0.1


def test_another_batch_size_changes_what_computing_takes() -> None:
    double = lambda w, p: 1.0 / (1.6 / w + 0.05 + 0.1 * max(w / p, 1.0) + 0.02 * (w + p))  # noqa: E731
    outlook = outlook_of(young(ended("a", speed=double, global_batch_size=128)))
    assert error(outlook, law()) < 0.15


def test_jobs_of_another_mode_say_nothing_about_speed() -> None:
    outlook = outlook_of(young(ended("a", speed=law(), mode=Mode.ASYNC)))
    assert outlook.speeds.source is None
    assert outlook.forecast.speed_from is None


def test_calculated_speeds_hold_until_the_first_measurement() -> None:
    calculated = samples(law(), [(1, 1), (2, 2), (4, 4), (8, 8)])
    before = outlook_of(young(calculated_speeds=calculated))
    assert before.speeds.source is SpeedSource.ANALYSIS
    assert before.learning
    assert before.forecast.steps_per_second is not None
    assert before.forecast.remaining_seconds is None, "no time is predicted by arithmetic"
    measured = samples(lambda w, p: 3.0 * law()(w, p), [(1, 1)])
    after = outlook_of(young(calculated_speeds=calculated, measured=measured))
    assert after.speeds.at(Allocation(3, 3)) == outlook_of(young(measured=measured)).speeds.at(Allocation(3, 3))


# --- memory ----------------------------------------------------------------------------------------------------------


def test_the_newest_jobs_of_the_newest_tasks_are_remembered() -> None:
    jobs = EndedJobs(ended(f"j{number}") for number in range(MAX_PER_TASK + 3))
    assert [job.id for job in jobs.of("zoo:cnn")] == [f"j{number}" for number in range(3, MAX_PER_TASK + 3)]
    for number in range(MAX_TASKS):
        jobs.add(ended("other", task=f"task{number}"))
    assert jobs.of("zoo:cnn") == ()
    assert len(jobs.of("task0")) == 1


def test_a_job_that_became_slower_is_seen_at_its_present_speed() -> None:
    sizes = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (6, 3)]
    before = samples(law(), sizes, at=NOW - 600.0)
    slow = lambda w, p: law()(w, p) / 3.0  # noqa: E731
    after = samples(slow, [(6, 3)], at=NOW - 20.0) + samples(slow, [(6, 3)], at=NOW)
    assert error(outlook_of(young(measured=before + after)), slow) < 0.25


def test_a_job_told_twice_counts_once_and_one_without_losses_not_at_all() -> None:
    jobs = EndedJobs([ended("a"), ended("b"), ended("a"), ended("c", losses=(1.0,), loss_steps=(1.0,))])
    assert [job.id for job in jobs.of("zoo:cnn")] == ["b", "a"]


def test_only_the_jobs_that_are_still_there_are_kept() -> None:
    jobs = EndedJobs([ended("a"), ended("b"), ended("c", task="other")])
    before = jobs.of("zoo:cnn")
    jobs.keep({"a", "b", "c"})
    assert jobs.of("zoo:cnn") is before
    jobs.keep({"b"})
    assert [job.id for job in jobs.of("zoo:cnn")] == ["b"]
    assert jobs.of("other") == ()


def test_runs_that_count_epochs_say_nothing_of_one_that_counts_steps() -> None:
    """The same script with another way to print: its 5 steps are epochs."""

    def run(name: str, each: float | None, *arguments: str) -> EndedJob:
        return ended(name, steps_per_epoch=each, arguments=arguments)

    steps, epochs = run("steps", None, "--n"), run("epochs", 1.0, "--style")
    other, silent = run("other", 20.0, "--m"), replace(run("silent", None), silent=SilentRun(1, 0, 9.0))
    runs = (steps, other, silent, epochs)

    def alike(*runs: EndedJob, arguments: str = "--n", counts_epochs: bool | None = None) -> list[str]:
        return [each.id for each in counted_alike(runs, (arguments,), counts_epochs)]

    assert alike(*runs) == ["steps", "other", "silent"]
    assert alike(*runs, arguments="--style") == ["silent", "epochs"], "as the runs with its arguments"
    assert alike(*runs, arguments="--new") == ["steps", "other", "silent"], "as most"
    assert alike(steps, epochs, arguments="--new") == ["epochs"], "as the newest of as many"
    assert alike(*runs, arguments="--style", counts_epochs=False) == ["steps", "other", "silent"], "it has told"
    assert counted_alike(same := (steps, other), ("--n",), False) is same
    assert counted_alike(same, ("--n",), None) is same
    assert counted_alike(same, ("--n",), True) == (), "its epochs would be taken for so many steps"


@pytest.mark.parametrize("step", [20, 50, 110, 230, 340])
def test_a_script_without_epochs_ends_about_where_the_very_same_one_did(step: int) -> None:
    """Its loss falls slowly at first, so that its own curve comes to the target late or never."""
    rule = ConvergenceRule(target_loss=0.3, max_steps=2000)

    def losses(n: int, shift: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        steps = tuple(map(float, range(1, n + 1)))
        return steps, tuple(0.1 + 2.0 * math.exp(-at / 200.0) + 0.01 * math.sin(shift * at) for at in steps)

    run_steps, run_losses = losses(461, 1.7)
    speeds = samples(lambda _w, _p: 10.0, [(1, 0)])
    run = replace(
        ended("run", steps_per_epoch=None, arguments=("a",)),
        loss_steps=run_steps,
        losses=run_losses,
        total_steps=461,
        rule=rule,
    )
    spec = a_spec(minimum=(1, 0), maximum=(1, 0), rule=rule)
    spec = replace(spec, architecture=Architecture.SCRIPT, arguments=("a",))
    own_steps, own_losses = losses(step, 2.3)
    job = replace(
        a_job("job", has=(1, 0), spec=spec, measured=speeds, step=step), loss_steps=own_steps, losses=own_losses
    )
    alone, beside = (
        forecast(each, NOW, Settings()).forecast.total_steps for each in (job, replace(job, similar=(run,)))
    )
    assert alone is not None
    assert beside is not None
    assert beside.low <= 461.0 <= beside.high
    assert abs(math.log(beside.mean / 461.0)) <= abs(math.log(alone.mean / 461.0)) + 0.02
    others = replace(run, arguments=("b",)), replace(run, rule=replace(rule, target_loss=0.2))
    assert forecast(replace(job, similar=others), NOW, Settings()).forecast.total_steps == alone, "not the very same"


# --- changes of size -------------------------------------------------------------------------------------------------


def test_the_first_change_of_a_job_is_judged_by_those_of_others() -> None:
    experienced = replace(young(), id="old", rescale_seconds=(30.0,) * 6)
    fresh = replace(young(), id="new")
    alone = outlook_of(fresh).stop_seconds
    new, old = forecast_all([fresh, experienced], NOW, Settings())  # by id
    assert alone < 3.0
    assert new.stop_seconds > 15.0
    assert old.stop_seconds == pytest.approx(30.0, rel=0.2)


def test_the_first_change_of_a_job_is_judged_by_those_of_ended_jobs_of_its_task() -> None:
    ended = EndedJob("run", "zoo:cnn", "vision", 100.0, rescale_seconds=(0.03,) * 4)
    (found,) = forecast_all([replace(young(), similar=(ended,))], NOW, Settings())
    assert found.stop_seconds < 0.2


# --- before the first losses -----------------------------------------------------------------------------------------


def waiting(*similar: EndedJob, **rule: object) -> Job:
    spec = young().spec
    wanted = ConvergenceRule(**{"target_loss": 0.17, **rule})  # type: ignore[arg-type]
    return a_job("waiting", spec=replace(spec, convergence=wanted), similar=similar)


def precedent(name: str, steps: int, **fields: object) -> EndedJob:
    return replace(ended(name), total_steps=steps, rule=ConvergenceRule(target_loss=0.17), **fields)  # type: ignore[arg-type]


def test_a_job_without_losses_is_expected_to_take_what_others_took() -> None:
    alone = outlook_of(waiting()).forecast
    assert alone.total_steps is None
    reported = outlook_of(waiting(precedent("a", 1000), precedent("b", 1210))).forecast
    assert reported.total_steps is not None
    assert reported.total_steps.mean == pytest.approx(1100, rel=0.01)
    assert reported.total_steps.low < 900 < 1400 < reported.total_steps.high
    assert reported.rule == "target_loss"
    assert 0.1 < reported.confidence < 0.4


def test_a_limit_that_comes_sooner_counts() -> None:
    rule = ConvergenceRule(target_loss=0.17, max_steps=500)
    reported = outlook_of(waiting(replace(precedent("a", 1000), rule=rule), max_steps=500)).forecast
    assert (reported.rule, reported.total_steps and reported.total_steps.mean) == ("max_steps", 500.0)


def test_a_run_whose_loss_ended_it_tells_an_end_under_another_limit_of_epochs() -> None:
    """Beyond the own limit that is the end; where a limit ended the run, it tells nothing of when the loss would."""
    run = precedent("a", 1000)  # 10 epochs
    assert run.rule is not None
    by_loss = replace(run, rule=replace(run.rule, max_epochs=20.0))

    def told(limit: float | None, *runs: EndedJob) -> tuple[str | None, float | None]:
        found = outlook_of(waiting(*runs, max_epochs=limit)).forecast
        return found.rule, found.total_steps and round(found.total_steps.mean)

    assert told(None, by_loss) == ("target_loss", 1000)
    assert told(15.0, by_loss) == ("target_loss", 1000)
    assert told(6.0, by_loss) == ("max_epochs", 600)
    by_limit = replace(run, rule=replace(run.rule, max_epochs=10.0))
    assert with_precedents(waiting(by_limit, max_epochs=15.0), 100.0, None) is None
    assert told(6.0, by_limit) == ("max_epochs", 600), "it passed the limit of this one"
    assert with_precedents(waiting(by_loss, max_epochs=15.0), 100.0, None) is not None


@pytest.mark.parametrize("limit", [{"max_seconds": 1e6}, {"max_cost": 1e6}, {"max_steps": 10**6}, {"max_epochs": 1e4}])
def test_a_far_limit_leaves_a_job_the_end_that_runs_without_it_tell(limit: dict[str, Any]) -> None:
    """Whether the job has the limit or the run had: it only bounds the end."""
    run = precedent("a", 1000)
    assert run.rule is not None
    settings = Settings(price_per_core_hour=1.0)
    measured = samples(lambda _w, _p: 10.0, [(1, 1)])
    running = a_job("running", has=(1, 1), spec=waiting().spec, measured=measured, step=5, similar=(run,))
    running = replace(running, steps_per_epoch=100.0)
    plain = forecast(running, NOW, settings).forecast
    assert plain.remaining_seconds is not None
    limited = replace(running, spec=replace(running.spec, convergence=replace(running.spec.convergence, **limit)))
    found = forecast(limited, NOW, settings).forecast
    assert (found.remaining_seconds, found.cost) == (plain.remaining_seconds, plain.cost)
    was_limited = replace(run, rule=replace(run.rule, **limit), ended_by="target_loss")
    assert forecast(replace(running, similar=(was_limited,)), NOW, settings).forecast.total_steps == plain.total_steps


@pytest.mark.parametrize("name", ["max_seconds", "max_cost", "max_steps"])
def test_a_run_that_another_limit_ended_tells_no_end(name: str) -> None:
    run = precedent("a", 1000)
    assert run.rule is not None
    rule = dict[str, Any]({name: 1000})
    cut = replace(run, rule=replace(run.rule, **rule), ended_by=name)
    assert with_precedents(waiting(cut), 100.0, None) is None
    assert with_precedents(waiting(cut, **{name: 2000}), 100.0, None) is None
    assert with_precedents(waiting(cut, **rule), 100.0, None) is not None, "the very same"


@pytest.mark.parametrize(
    "other",
    [
        {"project": "audio"},
        {"rule": ConvergenceRule(target_loss=0.2)},
        {"total_steps": 0},
    ],
)
def test_only_jobs_with_the_same_rule_and_project_are_precedents(other: dict[str, object]) -> None:
    assert outlook_of(waiting(replace(precedent("a", 1000), **other))).forecast.total_steps is None  # type: ignore[arg-type]


def test_without_losses_epochs_go_by_the_inverse_of_the_decrease() -> None:
    rule = ConvergenceRule(loss_decrease=0.02, max_epochs=100)
    jobs = [
        EndedJob(f"{each}", "zoo:cnn", "vision", 1.0, total_steps=epochs, rule=replace(rule, loss_decrease=each))
        for each, epochs in {0.04: 20, 0.01: 80}.items()  # epochs are 0.8 / decrease
    ]
    found = ends_under(rule, jobs)
    assert [each.epochs for each in found.values()] == pytest.approx([40.0, 40.0])
    by_limit = replace(ended("limit"), rule=replace(rule, loss_decrease=0.005), total_steps=100, steps_per_epoch=1.0)
    other = replace(ended("other"), rule=replace(rule, patience_epochs=5), total_steps=70, steps_per_epoch=1.0)
    assert ends_under(rule, [by_limit, other]) == {}


def test_only_runs_that_the_decrease_of_the_loss_ended_are_moved_to_another_one() -> None:
    rule, theirs = ConvergenceRule(loss_decrease=0.01), ConvergenceRule(loss_decrease=0.02)
    one = EndedJob("one", "zoo:cnn", "vision", 1.0, total_steps=40, rule=theirs)
    for by, is_moved in ((None, True), ("loss_decrease", True), ("command_ends", False)):
        assert bool(ends_under(rule, [replace(one, ended_by=by)])) is is_moved


@given(
    decreases=st.lists(st.floats(0.001, 0.5), min_size=1, max_size=6),
    epochs=st.lists(st.integers(4, 10_000), min_size=6, max_size=6),
    decrease=st.floats(0.001, 0.5),
)
def test_without_losses_a_smaller_decrease_takes_no_fewer_epochs(
    decreases: list[float], epochs: list[int], decrease: float
) -> None:
    rule = ConvergenceRule(loss_decrease=decrease)
    jobs = [
        EndedJob(f"{n}", "zoo:cnn", "vision", 1.0, total_steps=took, rule=ConvergenceRule(loss_decrease=each))
        for n, (each, took) in enumerate(zip(decreases, epochs, strict=False))
    ]
    now, smaller = ends_under(rule, jobs), ends_under(replace(rule, loss_decrease=decrease / 2.0), jobs)
    assert now.keys() == smaller.keys() == {job.id for job in jobs}
    for job in jobs:
        assert 4.0 <= now[job.id].epochs <= smaller[job.id].epochs * (1.0 + 1e-9)
        assert now[job.id].spread >= 0.0
        if job.rule == rule:
            assert now[job.id] == (job.n_epochs, 0.0)


@pytest.mark.parametrize(
    ("asked", "wanted"), [(0.01, 0.04), (0.03, 0.02), (0.04, 0.02)], ids=["much sooner", "later", "later, twice"]
)
@pytest.mark.parametrize(
    "law", [(0.14, 1.1, 0.1), (0.6, 4.7, 0.77)], ids=["falls to a tenth", "hardly falls, its end does not move"]
)
def test_losses_of_a_run_tell_where_another_decrease_would_have_ended_it(
    law: tuple[float, float, float], asked: float, wanted: float
) -> None:
    slope, begin, floor = law
    rules = [ConvergenceRule(loss_decrease=each) for each in (asked, wanted)]
    true = [1.0 / (slope * epoch + begin) + floor for epoch in range(200)]
    own, expected = (converged_epoch(true, as_rule(rule)) for rule in rules)
    assert own is not None
    assert expected is not None
    steps = np.arange(1.0, 20.0 * own)
    noise = np.random.default_rng(3).normal(0.0, 0.02, len(steps))
    losses = (1.0 / (slope * steps / 20.0 + begin) + floor) * np.exp(noise)
    run = EndedJob("a", "zoo:cnn", "vision", 20.0, tuple(steps.tolist()), tuple(losses.tolist()))
    (found,) = ends_under(rules[1], [replace(run, total_steps=20 * own, rule=rules[0])]).values()
    # Half of the way that a power of the decrease would say, at most.
    assert abs(math.log(found.epochs / expected)) < 0.3
    assert abs(math.log(found.epochs / expected)) < 2.0 * found.spread


def test_an_end_that_was_asked_for_otherwise_is_less_certain() -> None:
    jobs = [
        replace(ended("a"), total_steps=400, rule=ConvergenceRule(loss_decrease=each)) for each in (0.02, 0.01, 0.001)
    ]
    totals = [outlook_of(waiting(job, target_loss=None, loss_decrease=0.02)).forecast.total_steps for job in jobs]
    widths = [total.high / total.low for total in totals if total is not None]
    assert len(widths) == 3
    assert widths == sorted(widths)
    assert totals[0] is not None
    assert totals[0].mean == pytest.approx(400.0)


def test_own_losses_overrule_precedents() -> None:
    job = young(precedent("a", 100_000), n=80)
    assert job.spec.convergence == ConvergenceRule(target_loss=0.17)
    reported = outlook_of(job).forecast
    assert reported.total_steps is not None
    assert reported.total_steps.mean < 10_000


def test_runs_that_passed_its_limit_leave_a_job_as_sure_as_it_was_whose_own_losses_put_the_end_there() -> None:
    """Where their losses would have ended them, nobody knows; of one that its loss ended before, that is known."""
    job = young(n=80)
    rule = replace(job.spec.convergence, target_loss=1e-9, max_epochs=30.0)
    passed = replace(ended("passed"), losses=(), loss_steps=(), total_steps=4000, rule=replace(rule, max_epochs=40.0))
    sooner = replace(ended("sooner"), total_steps=2500, rule=replace(rule, max_epochs=40.0))
    assert passed.steps_per_epoch == 100.0

    def told(*runs: EndedJob) -> Interval | None:
        spec = replace(job.spec, convergence=rule)
        return outlook_of(replace(job, spec=spec, similar=runs, steps_per_epoch=100.0)).forecast.total_steps

    alone, both = told(), told(passed, sooner)
    assert told(passed) == alone
    assert alone is not None
    assert both is not None
    assert both.low < alone.low < alone.mean == 3000.0


def test_a_run_of_the_same_rule_that_its_limit_ended_makes_a_job_no_less_sure() -> None:
    job = young(n=80)
    rule = ConvergenceRule(loss_decrease=0.001, max_epochs=30.0)
    job = replace(job, spec=replace(job.spec, convergence=rule), steps_per_epoch=100.0)
    steps = np.arange(10.0, 3000.0, 10.0)
    losses = 1.0 / (0.002 * steps + 0.5) + 0.1
    run = replace(ended("run"), loss_steps=tuple(steps.tolist()), losses=tuple(losses.tolist()), total_steps=3000)
    alone, beside = (
        outlook_of(replace(job, similar=runs)).forecast.total_steps for runs in ((), (replace(run, rule=rule),))
    )
    assert alone is not None
    assert beside is not None
    assert alone.mean == beside.mean == 3000.0
    assert beside.low >= alone.low


EPOCH_STEPS, REPORTED = 45, 15
"""Steps of an epoch, and steps between reports, of the job that is submitted again and again."""


def submitted(seed: int, *similar: EndedJob) -> tuple[EndedJob, list[Outlook]]:
    """A small image classifier, trained until its rule ends it: its outlook after each epoch, and what it leaves."""
    steps = np.arange(REPORTED, 300 * EPOCH_STEPS, REPORTED)
    noise = np.random.default_rng(seed).normal(0.0, 0.04, len(steps))
    losses = (2.3 / (1.0 + 0.004 * steps) ** 1.2 + 0.05) * (1.0 + noise)
    rule = ConvergenceRule(loss_decrease=0.01, max_epochs=200.0)
    outlooks: list[Outlook] = []
    forecaster = RememberingForecaster()
    while not (outlooks and outlooks[-1].forecast.converged):
        step = EPOCH_STEPS * (len(outlooks) + 1)
        n = step // REPORTED
        job = replace(
            young(*similar),
            spec=replace(young().spec, convergence=rule),
            step=step,
            steps_per_epoch=float(EPOCH_STEPS),
            loss_steps=tuple(steps[:n].astype(float).tolist()),
            losses=tuple(losses[:n].tolist()),
        )
        outlooks += forecaster([job], NOW, Settings())
    left = EndedJob(f"job-{seed}", "zoo:cnn", "vision", float(EPOCH_STEPS), job.loss_steps, job.losses)
    return replace(left, total_steps=job.step, rule=rule), outlooks


def test_a_job_submitted_five_times_is_told_an_end_that_it_keeps() -> None:
    known: list[EndedJob] = []
    held = []
    for seed in range(5):
        job, outlooks = submitted(seed, *known)
        known.append(job)
        after_a_tenth = outlooks[len(outlooks) // 10 : -1]
        predicted = [each.forecast.total_steps for each in after_a_tenth]
        if seed >= 2:  # with two ended jobs known
            assert all(each is not None and 0.5 < each.mean / job.total_steps < 2.0 for each in predicted)
        held += [each is not None and each.low <= job.total_steps <= each.high for each in predicted]
    assert np.mean(held) > 0.7


def announcing(*parts: float, step: int = 0, announced: int = 2000) -> Job:
    """A script at this step that says it makes so many, and whose earlier runs ended at these parts of theirs."""
    rule = ConvergenceRule(max_steps=announced, ends_itself=True)
    spec = replace(a_spec(rule=rule), project="vision", family="train.py")
    runs = [
        EndedJob(f"run-{i}", "train.py", "vision", None, total_steps=round(part * 1000), announced_steps=1000)
        for i, part in enumerate(parts)
    ]
    return a_job("young", has=(1, 0), spec=spec, step=step, similar=tuple(runs))


def total_steps(job: Job) -> Interval:
    found = forecast(job, NOW, Settings()).forecast.total_steps
    assert found is not None
    return found


def test_a_command_that_announces_its_steps_may_end_where_earlier_runs_of_it_did() -> None:
    assert total_steps(announcing()) == total_steps(announcing(1.0, 0.95)) == Interval(2000.0, 2000.0, 2000.0)
    once = total_steps(announcing(0.15))
    assert once.low < 0.15 * 2000 < once.mean < 2000 == once.high, "it may be as it says all the same"
    often = total_steps(announcing(0.15, 0.16, 0.14, 0.15, 0.17, 0.15))
    assert often.low < 0.15 * 2000 < often.high < 1000
    mixed = total_steps(announcing(1.0, 0.15, 1.0, 1.0))
    assert mixed.mean == mixed.high == 2000 > mixed.low


@pytest.mark.parametrize("tails", [(45.0,), (40.0, 50.0), (0.0, 0.0)])
def test_what_runs_with_its_arguments_did_after_their_last_step_is_told_of_a_command(tails: tuple[float, ...]) -> None:
    job = announcing(*[1.0] * len(tails))
    assert forecast(job, NOW, Settings()).forecast.seconds_after_steps is None, "an older release did not keep it"
    runs = [replace(run, seconds_after_steps=tail) for run, tail in zip(job.similar, tails, strict=True)]
    job = replace(job, similar=tuple(runs))
    found = forecast(job, NOW, Settings()).forecast.seconds_after_steps
    assert found is not None
    assert found.mean == pytest.approx(max(float(np.mean(tails)), 0.1), rel=0.02)
    assert found.low < found.mean < found.high
    other = replace(job, similar=tuple(replace(run, arguments=("--epochs", "9")) for run in runs))
    assert forecast(other, NOW, Settings()).forecast.seconds_after_steps is None
    limited = replace(job, spec=replace(job.spec, convergence=ConvergenceRule(max_steps=10)))
    assert forecast(limited, NOW, Settings()).forecast.seconds_after_steps is None, "it is ended before"


def test_a_run_ends_where_those_with_its_arguments_did_whatever_others_did() -> None:
    """Of 100 steps, a script stopped at 45 twice; runs of it with other arguments ended as they announced."""
    patient, whole = ("--early", "45"), ("--steps", "60")
    runs = [
        EndedJob(f"run-{i}", "train.py", "vision", None, total_steps=steps, announced_steps=announced, arguments=each)
        for i, (steps, announced, each) in enumerate(
            [(60, 60, whole)] * 4 + [(45, 100, patient)] * 2 + [(60, 60, whole)]
        )
    ]

    def ending(arguments: tuple[str, ...], step: int = 0) -> Interval:
        job = replace(announcing(step=step, announced=100), similar=tuple(runs))
        return total_steps(replace(job, spec=replace(job.spec, arguments=arguments)))

    for step in (0, 12, 25, 40):
        told = ending(patient, step)
        assert told.low <= 46 < told.high, "it may be as it says all the same"
        assert 40 < told.mean < 55
    assert ending(whole) == Interval(100.0, 100.0, 100.0)
    unseen = ending(("--early", "30"))
    assert unseen.low < unseen.mean == unseen.high == 100, "nothing is known of these arguments: all runs count"


def test_a_run_that_its_limit_ended_has_not_ended_early() -> None:
    """It announced 2000 steps and was ended by its owner's limit of epochs after 300."""
    limited = announcing(0.15, 0.15)
    runs = [replace(run, rule=ConvergenceRule(max_epochs=3.0), ended_by="max_epochs") for run in limited.similar]
    assert total_steps(replace(limited, similar=tuple(runs))) == Interval(2000.0, 2000.0, 2000.0)


def test_a_command_ends_where_the_very_same_one_did_in_another_project() -> None:
    """With other arguments it says nothing there, and runs of its own project with its arguments come first."""
    same = announcing(0.15, 0.16, 0.14)
    abroad = tuple(replace(run, project="text") for run in same.similar)
    assert total_steps(replace(same, similar=abroad)) == total_steps(same)
    other = tuple(replace(run, arguments=("--epochs", "9")) for run in abroad)
    assert total_steps(replace(same, similar=other)) == Interval(2000.0, 2000.0, 2000.0)
    at_home = announcing(1.0, 1.0).similar
    assert total_steps(replace(same, similar=(*at_home, *abroad))) == Interval(2000.0, 2000.0, 2000.0)


@given(st.lists(st.floats(0.01, 1.0), max_size=6), st.integers(0, 1999))
def test_what_earlier_runs_say_of_a_command_lies_between_its_step_and_what_it_announces(
    parts: list[float], step: int
) -> None:
    found = total_steps(announcing(*parts, step=step))
    assert step <= found.low <= found.mean <= found.high <= 2000


# --- Rings that leave a node -----------------------------------------------------------------------------------------

FOUR_EACH = Nodes(a_cluster(4.0, 2.0))


def a_ring(most: int = 16) -> JobSpec:
    spec = a_spec(minimum=(1, 0), maximum=(most, 0))
    return replace(spec, architecture=Architecture.ALLREDUCE, family="zoo:ring")


def ended_ring(name: str, task: str, jump: float, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> EndedJob:
    """It scales as the curve's prior has it; from five workers on it is slower by a factor of e to `jump`."""
    speeds = ScalingCurve.fit([1], [1.0]).predict(sizes, sizes)
    measured = tuple(
        SpeedSample(w, 0, float(speed) * math.exp(-jump if w > 4 else 0.0))
        for w, speed in zip(sizes, speeds, strict=True)
    )
    return replace(ended(name, architecture=Architecture.ALLREDUCE), task=task, speed_samples=measured)


@pytest.mark.parametrize(
    ("need", "times"),
    [
        (Resources(1.0), 4),
        (Resources(0.5, 32 * GIB), 2),
        (Resources(5.0), 0),
        (Resources(1.0, 0, {"a100": 1}), 0),
        (Resources(), 0),
    ],
)
def test_as_many_workers_fit_on_a_node_as_on_the_largest(need: Resources, times: int) -> None:
    assert FOUR_EACH.most_on_one(need) == times
    assert Nodes().most_on_one(need) == 0


def test_only_rings_that_may_leave_a_node_have_a_boundary() -> None:
    known = EndedJobs()
    assert known.boundary_of(a_ring(), FOUR_EACH) == Boundary(4)
    for other in (a_ring(most=4), a_spec(), replace(a_ring(), tracked=True)):
        assert known.boundary_of(other, FOUR_EACH) is None
    assert known.boundary_of(a_ring(), Nodes()) is None


def test_what_ended_jobs_of_all_tasks_did_beyond_a_node_is_believed_of_others() -> None:
    """Each task counts once, whatever the number of its jobs; a job that stayed in a node tells nothing."""
    known = EndedJobs([ended_ring(f"slow-{n}", "zoo:slow", 1.5) for n in range(5)])
    known.add(ended_ring("fast", "zoo:fast", 0.0))
    known.add(ended_ring("small", "zoo:small", 1.0, sizes=(1, 2)))
    boundary = known.boundary_of(a_ring(), FOUR_EACH)
    assert boundary is not None
    assert boundary.jumps == pytest.approx(Jumps.after([0.0, 1.5]))
    assert boundary is not known.boundary_of(a_ring(), FOUR_EACH) == boundary
    known.keep({"fast"})
    assert known.boundary_of(a_ring(), FOUR_EACH) == Boundary(4, Jumps.after([0.0]))


def test_a_job_that_changed_its_gpu_type_or_batch_tells_no_jump() -> None:
    one = ended_ring("one", "zoo:slow", 1.5)
    for other in ({"gpu_type": "a100"}, {"batch": 128}):
        first, *rest = one.speed_samples
        changed = replace(one, speed_samples=(replace(first, **other), *rest))
        assert EndedJobs([changed]).boundary_of(a_ring(), FOUR_EACH) == Boundary(4)


def test_a_job_is_told_less_of_sizes_beyond_a_node_and_as_much_of_its_speed() -> None:
    measured = tuple(SpeedSample(w, 0, float(w), n_steps=50, at=NOW) for w in (1, 2))
    job = a_job("ring", has=(2, 0), spec=a_ring(), measured=measured, step=100)
    without, told = (forecast(each, NOW, Settings()) for each in (job, replace(job, boundary=Boundary(4))))
    small, large = Allocation(4, 0), Allocation(8, 0)
    assert told.speeds.estimate(small) == without.speeds.estimate(small)
    here, there = told.speeds.estimate(large), without.speeds.estimate(large)
    assert (here.mean, here.high) == pytest.approx((there.mean, there.high))
    assert here.low < 0.7 * there.low


def test_new_jumps_are_believed_in_the_next_round() -> None:
    measured = tuple(SpeedSample(w, 0, float(w), n_steps=50, at=NOW) for w in (1, 2))
    job = a_job("ring", has=(2, 0), spec=a_ring(), measured=measured, step=100, boundary=Boundary(4))
    forecaster, lows = RememberingForecaster(), []
    for jumps in (Jumps(), Jumps.after([2.0] * 5)):
        (seen,) = forecaster([replace(job, boundary=Boundary(4, jumps))], NOW, Settings())
        lows.append(seen.speeds.estimate(Allocation(8, 0)).low)
    assert lows[1] < lows[0]
