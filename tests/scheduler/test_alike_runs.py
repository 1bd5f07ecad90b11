"""Jobs that have told nothing yet are expected to take as long as runs like them, before and after their submission."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scheduler.builders import ALL_SIZES, NOW, a_job, a_spec, law, samples

from optimus_scheduler.ahead.corrected_times import corrected_times
from optimus_scheduler.ahead.queue import Queue
from optimus_scheduler.allocate.deadline_budget import limits_of
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.alike_runs import (
    busy_part_with_alike_runs,
    steps_left_like_alike_runs,
    steps_of_alike_runs,
)
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    EndedJob,
    Interval,
    Job,
    JobState,
    Node,
    Resources,
    SilentRun,
)
from optimus_scheduler.settings import Settings

GIB = 2**30


def ended(name: str, epochs: float, arguments: tuple[str, ...] = ()) -> EndedJob:
    return EndedJob(
        id=name,
        task="t",
        project="default",
        steps_per_epoch=10.0,
        loss_steps=(10.0, 10.0 * epochs),
        losses=(2.0, 1.0),
        speed_samples=samples(law(), ALL_SIZES),
        arguments=arguments,
    )


def job(*runs: EndedJob, **changes: object) -> Job:
    spec = a_spec(rule=ConvergenceRule(loss_decrease=0.01), maximum=(2, 2))
    found = replace(a_job("new", spec=spec), similar=runs, steps_per_epoch=10.0)
    return replace(found, **changes)  # type: ignore[arg-type]


def test_the_middle_of_the_runs_with_their_spread() -> None:
    found = steps_of_alike_runs(job(*(ended(f"run-{n}", float(n)) for n in range(10, 21))), 10.0)
    assert found is not None
    assert found.mean == pytest.approx(150.0)
    assert (found.low, found.high) == pytest.approx((110.0, 190.0), rel=0.02)


def test_one_run_says_little_and_none_nothing() -> None:
    found = steps_of_alike_runs(job(ended("run", 12.0)), 10.0)
    assert found is not None
    assert (found.low, found.mean, found.high) == pytest.approx((60.0, 120.0, 240.0))
    assert steps_of_alike_runs(job(), 10.0) is None
    assert steps_of_alike_runs(job(ended("run", 12.0)), None) is None, "nothing is known of an epoch"


def test_a_count_that_arguments_name_is_as_sure_as_all_runs_that_kept_to_it() -> None:
    """One of them had the same arguments: alone it would say little."""
    runs = [ended(f"run-{n}", float(n), ("--epochs", str(n))) for n in (10, 12, 14, 20)]
    asks = job(*runs)
    asks = replace(asks, spec=replace(asks.spec, arguments=("--epochs", "20")))
    found = steps_of_alike_runs(asks, 10.0)
    assert found is not None
    assert (found.low, found.mean, found.high) == pytest.approx((200.0, 200.0, 200.0))
    early = job(*runs, ended("early", 15.0, ("--epochs", "16")))
    found = steps_of_alike_runs(replace(early, spec=asks.spec), 10.0)
    assert found is not None
    assert (found.low, found.mean, found.high) == pytest.approx((100.0, 200.0, 400.0)), "one ended before its count"


@pytest.mark.parametrize(
    ("theirs", "before", "once_it_trains"),
    [
        (ConvergenceRule(target_loss=0.1), True, True),
        (ConvergenceRule(target_loss=0.1, max_epochs=50), True, False),
        (ConvergenceRule(target_loss=0.1, max_epochs=12), False, False),  # that ended it
        (ConvergenceRule(target_loss=0.1, max_steps=120), False, False),
        (ConvergenceRule(target_loss=0.2), False, False),
        (ConvergenceRule(loss_decrease=0.01), False, False),
        (ConvergenceRule(max_epochs=12), False, False),
    ],
)
def test_when_a_loss_is_reached_is_told_by_runs_that_came_to_it(
    theirs: ConvergenceRule, before: bool, once_it_trains: bool
) -> None:
    waits = job(replace(ended("run", 12.0), rule=theirs, total_steps=120))
    waits = replace(waits, spec=replace(waits.spec, convergence=ConvergenceRule(target_loss=0.1)))
    assert (steps_of_alike_runs(waits, 10.0) is not None) is before
    trains = replace(waits, step=100, losses=(1.0,) * 10, loss_steps=tuple(range(10, 110, 10)))
    assert (steps_of_alike_runs(trains, 10.0) is not None) is once_it_trains


def test_a_run_tells_when_it_came_to_the_loss_that_another_job_waits_for() -> None:
    steps = tuple(float(step) for step in range(10, 310, 10))
    run = replace(
        ended("run", 30.0),
        loss_steps=steps,
        losses=tuple(1.0 / (0.02 * step + 1.0) for step in steps),
        total_steps=300,
        rule=ConvergenceRule(target_loss=1.0 / 7.0),
    )
    for target, step in ((1.0 / 3.0, 100.0), (1.0 / 5.0, 200.0), (0.1, None)):
        waits = job(run)
        waits = replace(waits, spec=replace(waits.spec, convergence=ConvergenceRule(target_loss=target)))
        found = steps_of_alike_runs(waits, 10.0)
        assert (found and found.mean) == (None if step is None else pytest.approx(step, rel=0.11))


def test_another_decrease_of_the_loss_tells_something_before_the_own_losses_do() -> None:
    run = replace(ended("run", 12.0), rule=ConvergenceRule(loss_decrease=0.02), total_steps=120)
    assert steps_of_alike_runs(job(run), 10.0) is not None


def test_runs_that_told_no_epochs_are_counted_in_steps() -> None:
    runs = [replace(ended(name, 12.0), steps_per_epoch=None, total_steps=400) for name in ("one", "two")]
    found = steps_of_alike_runs(job(*runs), None)
    assert found is not None
    assert (found.low, found.mean, found.high) == pytest.approx((400.0, 400.0, 400.0))
    assert steps_of_alike_runs(job(*runs, ended("three", 30.0)), 10.0) == steps_of_alike_runs(
        job(ended("three", 30.0)), 10.0
    ), "epochs say more"


def test_what_has_been_made_is_taken_off_and_more_is_left_than_nothing() -> None:
    runs = [ended("one", 12.0), ended("two", 12.5)]
    left = [steps_left_like_alike_runs(job(*runs, step=step), 10.0) for step in (0, 60, 300)]
    assert all(each is not None for each in left)
    means = [each.mean for each in left if each is not None]
    assert means[1] == pytest.approx(means[0] - 60.0, rel=0.05)
    assert means[2] > 0, "it has taken longer than all runs"


def test_a_submitted_job_has_the_end_of_runs_like_it() -> None:
    new = job(*(ended(f"run-{n}", 12.0) for n in range(3)))
    outlook = forecast(new, NOW, Settings())
    assert outlook.forecast.remaining_steps is None, "its own reports say nothing"
    queue = Queue(NOW, (Node("node-0", Resources(32.0, 256 * GIB)),), [outlook], {"new": outlook.minimum})
    end = corrected_times(queue, policy_named("optimus"), Settings())["new"].shown.end
    assert end is not None
    assert end.low <= NOW + 120.0 / outlook.speeds.at(outlook.minimum) <= end.high * 1.5
    unknown = forecast(job(), NOW, Settings())
    alone = Queue(NOW, queue.nodes, [unknown], {"new": unknown.minimum})
    assert corrected_times(alone, policy_named("optimus"), Settings())["new"].shown.end is None


@pytest.mark.parametrize(("seconds", "claims"), [(1.0, False), (1e6, True)], ids=["hopeless", "possible"])
@pytest.mark.parametrize("step", [0, 5])
def test_a_deadline_that_no_run_like_it_would_have_met_claims_nothing(step: int, seconds: float, claims: bool) -> None:
    """Also after its first steps, which tell no end yet."""
    new = job(*(ended(f"run-{n}", 12.0) for n in range(3)), step=step)
    new = replace(new, spec=replace(new.spec, deadline_at=NOW + seconds))
    found = limits_of(forecast(new, NOW, Settings()), Resources(32.0, 256 * GIB), NOW, Settings())
    assert found is not None
    assert (found.claim is not None) == claims
    assert (found.note is not None and "by runs like it" in found.note) != claims


def test_a_deadline_that_its_highest_speed_would_meet_is_not_given_up() -> None:
    """Runs with other arguments tell a speed that is doubtful."""
    new = job(*(replace(ended(f"run-{n}", 12.0), arguments=(str(n),)) for n in range(3)))
    outlook = forecast(new, NOW, Settings())
    speed = outlook.speeds.estimate(outlook.minimum)
    assert speed.high > 1.2 * speed.mean
    steps = steps_left_like_alike_runs(new, 10.0)
    assert steps is not None
    worker = replace(new.spec.worker, maximum=new.spec.worker.minimum)
    for part, is_given_up in ((0.9, True), (1.1, False)):
        seconds = part * steps.low / speed.high + outlook.stop_seconds + outlook.joining_seconds
        spec = replace(new.spec, deadline_at=NOW + seconds, worker=worker, server=worker)
        found = limits_of(
            forecast(replace(new, spec=spec), NOW, Settings()), Resources(32.0, 256 * GIB), NOW, Settings()
        )
        assert found is not None
        assert (found.note is not None and "by runs like it" in found.note) == is_given_up


@pytest.mark.parametrize(
    ("n_losses", "apart", "judged_from", "is_fast"),
    [
        (15, 40.0, None, True),
        (60, 10.0, None, False),
        (15, 40.0, 4, False),
        (60, 10.0, 50, True),
        (15, 40.0, 20, False),
    ],
    ids=["fast", "slow", "judged sooner", "judged later", "ended before it was judged"],
)
def test_a_fast_run_that_was_ended_late_tells_others_where_its_rule_held(
    n_losses: int, apart: float, judged_from: int | None, *, is_fast: bool
) -> None:
    """Its rule was judged from its twelfth loss on, or where rules are judged from another one on: with other arguments
    a run may be slower, and end sooner."""
    steps = tuple(apart * (1 + n) for n in range(n_losses))
    rule = ConvergenceRule(loss_decrease=0.01)
    losses = tuple(0.5 + 1.0 / (1.0 + 0.2 * step) for step in steps)
    whole = replace(ended("fast", 60.0, ("delay=0",)), loss_steps=steps, losses=losses, rule=rule, total_steps=600)
    whole = replace(whole, judged_from=judged_from)

    def told(*arguments: str) -> float:
        new = job(whole)
        found = steps_of_alike_runs(replace(new, spec=replace(new.spec, arguments=arguments)), 10.0)
        assert found is not None
        return found.mean

    assert told("delay=0") == pytest.approx(600.0), "it is as fast, and ends as late"
    if is_fast:
        assert told("delay=1") < 300.0
    else:
        assert told("delay=1") == pytest.approx(600.0)


def silent(name: str, seconds: float, arguments: tuple[str, ...] = ("--seed", "1"), workers: int = 1) -> EndedJob:
    run = SilentRun(workers, 0, seconds)
    return EndedJob(name, "t", "default", None, arguments=arguments, device="CPU core", silent=run)


def a_script(*runs: EndedJob, **changes: object) -> Job:
    spec = replace(a_spec(rule=ConvergenceRule(max_steps=None), maximum=(1, 0)), arguments=("--seed", "1"))
    spec = replace(spec, server=replace(spec.server, minimum=0), architecture=Architecture.SCRIPT)
    found = replace(a_job("new", spec=spec), similar=runs)
    return replace(found, **changes)  # type: ignore[arg-type]


def end_of(job: Job, now: float = NOW) -> tuple[float, float, float] | None:
    """Seconds until its end, as users are told."""
    outlook = forecast(job, now, Settings())
    queue = Queue(now, (Node("node-0", Resources(32.0, 256 * GIB)),), [outlook], {"new": outlook.minimum})
    left = corrected_times(queue, policy_named("optimus"), Settings())["new"].shown.left(now)
    return None if left is None else (left.low, left.mean, left.high)


@pytest.mark.parametrize("steps_per_epoch", [None, 10.0])
def test_a_script_makes_as_many_steps_as_its_arguments_say_where_others_did(steps_per_epoch: float | None) -> None:
    def run(made: int, *arguments: str) -> EndedJob:
        one = replace(ended(f"run-{made}", float(made)), arguments=arguments, steps_per_epoch=steps_per_epoch)
        return replace(one, loss_steps=(1.0, 10.0 * made) if steps_per_epoch else (), total_steps=made)

    def steps(*runs: EndedJob) -> Interval | None:
        waits = a_script(*runs)
        return steps_of_alike_runs(replace(waits, spec=replace(waits.spec, arguments=("--n", "20"))), steps_per_epoch)

    each = steps_per_epoch or 1.0
    one = steps(run(30, "--n", "30"))
    assert one is not None
    assert (one.low, one.mean, one.high) == pytest.approx((10.0 * each, 20.0 * each, 40.0 * each))
    two = steps(run(30, "--n", "30"), run(5, "--n", "5"))
    assert two is not None
    assert (two.low, two.mean, two.high) == pytest.approx((20.0 * each,) * 3)
    unlike = steps(run(30, "--n", "30"), run(12, "--n", "15"))
    assert unlike is not None
    assert unlike.high > 3.0 * unlike.low, "one of them stopped by itself"


def test_an_argument_that_says_how_many_steps_it_makes_says_nothing_of_its_speed() -> None:
    def doubt(*arguments: str) -> float:
        """Of the speed of a job that has measured none, by a run with `--n 30` that made 30 steps."""
        speeds = tuple(replace(each, servers=0) for each in samples(law(), ((1, 1),)))
        run = replace(ended("run", 30.0), arguments=("--n", "30"), steps_per_epoch=None, total_steps=30)
        waits = a_script(replace(run, speed_samples=speeds, architecture=Architecture.SCRIPT))
        waits = replace(waits, spec=replace(waits.spec, arguments=arguments))
        found = forecast(waits, NOW, Settings()).speeds.estimate(Allocation(1, 0))
        return found.high / found.low

    assert doubt("--n", "20") == pytest.approx(doubt("--n", "30"))
    assert doubt("--n", "20", "--lr", "1") > 2.0 * doubt("--n", "20")
    assert doubt("--m", "30") > 2.0 * doubt("--n", "30")


def test_evaluations_to_come_are_expected_as_ended_runs_made_them() -> None:
    """One that has seen none of its own: those with its arguments, or others of its task, as one run behind it."""
    same = replace(ended("same", 12.0), arguments=("--lr", "1"), busy_seconds=60.0, reported_seconds=80.0)
    other = replace(ended("other", 12.0), arguments=("--lr", "2"), busy_seconds=40.0, reported_seconds=80.0)
    untold = replace(ended("untold", 12.0), arguments=("--lr", "1"))
    for runs, arguments, part in (
        ((same, other, untold), ("--lr", "1"), 0.75),
        ((same, other), ("--lr", "3"), 0.625),
        ((untold,), ("--lr", "1"), 1.0),
    ):
        assert busy_part_with_alike_runs(0.0, 0.0, runs, arguments) == pytest.approx(part)
    assert busy_part_with_alike_runs(80.0, 80.0, (same,), ("--lr", "1")) == pytest.approx(140.0 / 160.0)
    assert busy_part_with_alike_runs(0.1, 0.5, (), ()) == 1.0, "too little is seen"


def test_what_a_script_does_after_its_last_step_comes_with_its_end_where_it_announces_nothing_too() -> None:
    run = replace(ended("before", 12.0), steps_per_epoch=None, arguments=("--seed", "1"), total_steps=400)
    script = a_script(run, speed_samples=samples(law(), [(1, 1)]))
    ends = [end_of(replace(script, similar=(replace(run, seconds_after_steps=seconds),))) for seconds in (None, 50.0)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[1][1] - ends[0][1] == pytest.approx(50.0, rel=0.2)


def test_a_script_that_tells_no_step_takes_as_long_as_the_same_one_did_before() -> None:
    others = [replace(ended(f"other-{n}", 300.0, ("--seed", "1", "--long")), steps_per_epoch=None) for n in range(5)]
    found = end_of(a_script(*others, silent("before", 40.0)))
    assert found is not None
    low, middle, high = found
    assert middle == pytest.approx(40.0, rel=0.15)
    assert 10.0 < low < 25.0 < 60.0 < high < 160.0, "one run says little"
    often = end_of(a_script(*others, *(silent(f"before-{n}", 40.0 + n % 2) for n in range(20))))
    assert often is not None
    assert often[1] == pytest.approx(40.0, rel=0.15)
    assert often[2] / often[0] < 0.6 * high / low, "many say more"
    assert end_of(a_script(silent("other", 40.0, ("--seed", "2")))) is None
    assert end_of(a_script(silent("other", 40.0, workers=2))) is None


def test_a_script_that_tells_too_few_steps_to_measure_a_speed_is_like_one_that_tells_none() -> None:
    """It told its loss once, at its end, and so did the run before."""
    before = replace(silent("before", 40.0), total_steps=1)
    running = {"state": JobState.RUNNING, "allocation": Allocation(1, 0), "started_at": NOW, "allocated_at": NOW}
    left = [end_of(a_script(before, step=step, **running), NOW + 20.0) for step in (0, 1)]
    assert left[0] is not None
    assert left[0] == left[1]
    assert left[0][1] < 30.0


def test_what_is_left_of_a_silent_script_falls_while_it_runs() -> None:
    running = {
        "state": JobState.RUNNING,
        "allocation": Allocation(1, 0),
        "started_at": NOW,
        "allocated_at": NOW - 2.0,
    }
    left = [end_of(a_script(silent("before", 40.0), **running), NOW + age) for age in (0.0, 20.0, 200.0)]
    assert left[0] is not None
    assert left[1] is not None
    assert left[2] is not None
    assert left[1][1] < left[0][1] - 8.0
    assert left[2][1] > 40.0, "longer than before: nobody knows, so as long again"


def script_run(name: str, steps: int, **changes: object) -> EndedJob:
    """One that did not say how many steps it makes."""
    return replace(ended(name, 10.0), steps_per_epoch=None, total_steps=steps, **changes)  # type: ignore[arg-type]


CLOCKS = (ConvergenceRule(max_seconds=3600.0), ConvergenceRule(max_cost=3600.0))
PRICED = Settings(price_per_core_hour=3600.0)


@pytest.mark.parametrize("rule", CLOCKS, ids=["time", "money"])
@pytest.mark.parametrize(("theirs", "tell"), [(None, True), ("max_seconds", False), ("max_cost", False)])
def test_a_script_ends_like_its_earlier_runs_where_its_limit_is_far(
    rule: ConvergenceRule, theirs: str | None, tell: bool
) -> None:
    """And by its limit where these ended by theirs, which says nothing of where they would have ended."""
    asked = ConvergenceRule(max_seconds=60.0, max_cost=60.0) if theirs else rule
    runs = [script_run(f"run-{n}", 100, rule=asked, ended_by=theirs or "command_ends") for n in range(3)]
    spec = a_spec(rule=rule, maximum=(1, 1))
    trains = a_job("new", has=(1, 1), spec=spec, measured=samples(law(), ALL_SIZES), step=60)
    trains = replace(trains, similar=tuple(runs), started_at=NOW - 20.0)
    found = forecast(trains, NOW, PRICED)
    assert found.end_is_guessed is tell
    queue = Queue(NOW, (Node("n", Resources(8.0, 64 * GIB)),), (found,), {"new": trains.allocation})
    end = corrected_times(queue, policy_named("optimus"), PRICED)["new"].shown.end
    assert end is not None
    steps = 40.0 / found.speeds.at(trains.allocation)
    limit = 3580.0 if rule.max_seconds else 1800.0
    assert end.mean - NOW == pytest.approx(steps if tell else limit, rel=0.2)


def test_a_limit_of_money_counts_for_a_job_that_waits() -> None:
    """As it does for one that trains: what is left pays for so many steps."""
    spec = a_spec(rule=ConvergenceRule(max_steps=5000, max_cost=100.0), maximum=(1, 1))
    waits = replace(a_job("new", spec=spec, measured=samples(law(), ALL_SIZES)), spent=40.0)
    found = forecast(waits, NOW, PRICED)
    paid = 30.0 * found.speeds.at(Allocation(1, 1))
    assert found.forecast.rule == "max_cost"
    assert found.forecast.remaining_steps == pytest.approx((paid,) * 3)
    free = forecast(waits, NOW, Settings()).forecast
    assert (free.rule, free.remaining_steps) == ("max_steps", Interval(5000.0, 5000.0, 5000.0))
