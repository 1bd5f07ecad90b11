"""Deadlines and budgets: which sizes they ask for, who has precedence, and what the owner is told."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_job, a_snapshot, a_spec, law, samples
from tests.scheduler.constrained_worlds import PRICES, gpu_node, gpu_spec, measured_on, next_round

from optimus_scheduler.allocate.deadline_budget import Limits, limits_of, sizes
from optimus_scheduler.allocate.policies import POLICIES, policy_named
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.prices import cost_per_second
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import (
    Allocation,
    ConvergenceRule,
    Interval,
    Job,
    Node,
    Reason,
    Resources,
    Snapshot,
    SpeedSample,
    SpeedSource,
)
from optimus_scheduler.model.format import instant_words
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

OPTIMUS = policy_named("optimus")
ROOM = Resources(32.0, 256 * GIB)
PRICED = Settings(price_per_core_hour=1.0, growth_factor=2.0)
LAW = law()


def cluster(cpu: float) -> tuple[Node, ...]:
    return (Node("node-0", Resources(cpu, 256 * GIB)),)


def job_due(
    seconds: float | None, name: str = "a", steps: int = 10_000, has: tuple[int, int] = (2, 2), **rule: float
) -> Job:
    spec = a_spec(rule=ConvergenceRule(max_steps=steps, **rule), maximum=(8, 8))  # type: ignore[arg-type]
    spec = replace(spec, deadline_at=None if seconds is None else NOW + seconds)
    return a_job(name, has=has, spec=spec, measured=samples(LAW, ALL_SIZES))


def limits(job: Job, settings: Settings = PRICED) -> Limits:
    found = limits_of(forecast(job, NOW, settings), ROOM, NOW, settings)
    assert found is not None
    return found


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_without_deadline_and_budget_there_is_nothing_to_say() -> None:
    assert limits_of(forecast(job_due(None), NOW, PRICED), ROOM, NOW, PRICED) is None


@hypothesis_settings(max_examples=60, deadline=None)
@given(seconds=st.floats(300.0, 30_000.0))
def test_the_claim_is_the_least_size_that_ends_in_time(seconds: float) -> None:
    job = job_due(seconds)
    outlook, found = forecast(job, NOW, PRICED), limits(job)

    # The number of steps is the owner's own: nothing about it is uncertain.
    def ends_in_time(size: Allocation, margin: float = 1.0) -> bool:
        stop = 0.0 if size == job.allocation else outlook.stop_seconds
        return margin * 10_000 / outlook.speeds.at(size) + stop <= seconds

    share = {size: outlook.demand(size).dominant_share(ROOM) for size in sizes(outlook, ROOM)}
    if found.claim is None:
        assert found.reason is Reason.DEADLINE_CANNOT_BE_MET
        assert not any(ends_in_time(size) for size in share)
    else:
        assert ends_in_time(found.claim) or found.reason is Reason.DEADLINE_CANNOT_BE_MET
        smaller = [size for size in share if share[size] < share[found.claim] - 1e-12]
        if ends_in_time(job.allocation):  # it gives up tasks when there is room for it only
            assert not any(ends_in_time(size, margin=1.1) for size in smaller)
        elif found.reason is None and "it needs" in (found.note or ""):
            assert not any(ends_in_time(size) for size in smaller)


def test_the_owner_is_told() -> None:
    assert "cannot be met: it needs about " in (limits(job_due(60.0)).note or "")
    assert limits(job_due(-120.0)).note == f"Its deadline passed at {instant_words(NOW - 120.0)}."
    nearly = limits(job_due(_soonest() - 5.0))
    assert "will probably be missed by about 5.0 s: it ends soonest with" in (nearly.note or "")
    assert nearly.reason is Reason.DEADLINE_CANNOT_BE_MET
    assert (limits(job_due(90_000.0)).note or "").startswith(
        f"To meet its deadline at {instant_words(NOW + 90_000.0)} it needs "
    )
    unknown = replace(job_due(600.0), speed_samples=())
    assert (
        limits(unknown).note
        == f"Too little of it is measured to choose its size by its deadline at {instant_words(NOW + 600.0)}."
    )


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    seconds=st.floats(-2000.0, 2000.0),
    step=st.integers(9_900, 10_100),
    tasks=st.integers(0, 6),
    joining=st.floats(0.0, 600.0),
)
def test_a_job_that_has_made_its_steps_is_told_of_its_deadline_too(
    seconds: float, step: int, tasks: int, joining: float
) -> None:
    """Tasks that would join a job later than its end do not take its end back into the past."""
    outlook = forecast(replace(job_due(seconds, has=(tasks, tasks)), step=step), NOW, PRICED)
    found = limits_of(outlook._replace(joining_seconds=joining), ROOM, NOW, PRICED)
    assert found is not None
    assert found.note
    if step >= 10_000 and seconds > 0:
        assert found.reason is None, found


def _soonest() -> float:
    """Seconds that the job needs at least."""
    outlook = forecast(job_due(60.0), NOW, PRICED)
    stops = {size: 0.0 if size == outlook.present else outlook.stop_seconds for size in sizes(outlook, ROOM)}
    return min(10_000 / outlook.speeds.at(size) + stop for size, stop in stops.items())


def test_with_less_slack_a_claim_only_grows_until_it_is_hopeless() -> None:
    """No cliff: a deadline that is missed by a hair is worth what one that is met by a hair is."""
    soonest, shares = _soonest(), []
    outlook = forecast(job_due(60.0, has=(0, 0)), NOW, PRICED)
    for seconds in [soonest * (2.0 - 0.05 * step) for step in range(24)]:
        claim = limits(job_due(seconds, has=(0, 0))).claim
        shares.append(0.0 if claim is None else outlook.demand(claim).dominant_share(ROOM))
    kept = [share for share in shares if share > 0]
    assert kept == sorted(kept)
    assert shares[len(kept) :] == [0.0] * (len(shares) - len(kept))
    assert len(kept) > 20, "it is kept beyond the moment from which it cannot be met"


@hypothesis_settings(max_examples=20, deadline=None)
@given(part=st.floats(0.8, 1.6), noise=st.lists(st.floats(0.95, 1.05), min_size=25, max_size=25))
def test_a_job_near_its_deadline_is_not_resized_to_and_fro(part: float, noise: list[float]) -> None:
    """Rounds that follow each other, speeds that are measured up to 5 % differently each time, and a rival."""
    steps, every = 2_000, 20.0
    due = part * steps / 10_000 * _soonest()
    world = a_snapshot(
        [job_due(due, "due", steps, has=(2, 2)), job_due(None, "rival", 100_000, has=(2, 2))], cluster(16)
    )
    tasks = []
    for factor in noise:
        world, outcome = next_round(world, OPTIMUS, PRICED)
        size = outcome.decisions[0].allocation
        tasks.append(size.workers + size.servers)
        now = world.now + every
        jobs = tuple(_went_on(job, factor, every, now) for job in world.jobs)
        world = replace(world, now=now, jobs=jobs)
        if world.jobs[0].step >= steps:
            break
    turns = [b - a for a, b in itertools.pairwise(tasks) if a != b]
    reversals = sum(1 for one, other in itertools.pairwise(turns) if (one > 0) != (other > 0))
    assert reversals <= 2, tasks


def _went_on(job: Job, factor: float, seconds: float, now: float) -> Job:
    size = job.allocation
    if size.is_empty:
        return job
    speed = LAW(size.workers, max(size.servers, 1))
    measured = SpeedSample(size.workers, size.servers, factor * speed, 50, now)
    return replace(job, step=job.step + int(seconds * speed), speed_samples=(*job.speed_samples, measured))


def due_to_need(tasks: int) -> float:
    """A deadline, in seconds, that needs at least so many tasks."""
    for seconds in range(600, 20_000, 50):
        found = limits(job_due(float(seconds)))
        claim = found.claim if "it needs" in (found.note or "") else None
        if claim is not None and claim.workers + claim.servers <= tasks:
            return float(seconds)
    raise AssertionError("no deadline needs so few tasks")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_deadline_has_precedence_under_every_policy(policy: str) -> None:
    """Five jobs share 16 cores; one of them needs eight tasks or so to be in time."""
    late = job_due(due_to_need(8), "late", has=(1, 1))
    others = [job_due(None, f"other-{i}", steps=100_000, has=(1, 1)) for i in range(4)]
    outcome = plan(a_snapshot([late, *others], cluster(16)), policy_named(policy))
    claim = limits(late, Settings()).claim
    decision = next(each for each in outcome.decisions if each.job_id == "late")
    assert claim is not None
    assert decision.allocation.workers >= claim.workers
    assert decision.allocation.servers >= claim.servers
    assert "To meet its deadline" in decision.message


def test_the_earlier_deadline_goes_first_where_both_do_not_fit() -> None:
    seconds = due_to_need(8)
    jobs = [job_due(seconds, "early", has=(1, 1)), job_due(seconds + 10.0, "later", has=(1, 1))]
    outcome = plan(a_snapshot(jobs, cluster(12)), OPTIMUS)
    early, later = (decision.allocation for decision in outcome.decisions)
    claim = limits(jobs[0]).claim
    assert claim is not None
    assert early.workers >= claim.workers
    assert early.workers + early.servers > later.workers + later.servers


def test_a_deadline_that_cannot_be_met_has_no_precedence() -> None:
    jobs = [job_due(60.0, "hopeless", has=(1, 1)), job_due(None, "other", has=(1, 1))]
    plain = [job_due(None, "hopeless", has=(1, 1)), jobs[1]]
    constrained, without = (plan(a_snapshot(each, cluster(16)), OPTIMUS) for each in (jobs, plain))
    assert [d.allocation for d in constrained.decisions] == [d.allocation for d in without.decisions]
    assert constrained.decisions[0].reason is Reason.DEADLINE_CANNOT_BE_MET


def test_a_deadline_that_may_be_met_is_not_said_to_be_impossible() -> None:
    """At the low end of the steps that it may take it is in time."""
    outlook = forecast(job_due(0.5 * _soonest()), NOW, PRICED)
    left = outlook.forecast.remaining_steps
    assert left is not None
    doubtful = outlook.forecast._replace(remaining_steps=Interval(left.mean, 0.3 * left.mean, 2.0 * left.mean))
    for forecasted, told in ((outlook.forecast, "cannot be met"), (doubtful, "will probably be missed")):
        found = limits_of(outlook._replace(forecast=forecasted), ROOM, NOW, PRICED)
        assert found is not None
        assert (found.reason, found.claim) == (Reason.DEADLINE_CANNOT_BE_MET, None)
        assert f"{told}: it needs about " in (found.note or "")


@pytest.mark.parametrize("seconds", [60.0, 2600.0, 90_000.0])
def test_arithmetic_alone_judges_no_deadline(seconds: float) -> None:
    """The first measurement, seconds later, would say the opposite."""
    job = replace(job_due(seconds, has=(1, 1)), speed_samples=(), calculated_speeds=samples(LAW, ALL_SIZES))
    assert forecast(job, NOW, PRICED).speeds.source is SpeedSource.ANALYSIS
    note = f"Too little of it is measured to choose its size by its deadline at {instant_words(NOW + seconds)}."
    assert (limits(job).reason, limits(job).note) == (None, note)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(90_000.0, "it needs, by runs like it, "), (60.0, "will probably be missed: it needs, by runs like it, about ")],
)
def test_before_its_first_step_a_job_is_told_what_its_deadline_is_judged_by(seconds: float, told: str) -> None:
    outlook = forecast(job_due(seconds), NOW, PRICED)
    for source, is_told in ((SpeedSource.SIMILAR_JOBS, True), (SpeedSource.MEASURED, False)):
        found = limits_of(outlook._replace(speeds=Speeds(outlook.speeds.model, source)), ROOM, NOW, PRICED)
        assert found is not None
        assert (told in (found.note or "")) is is_told


def test_nothing_is_claimed_beyond_what_is_learned() -> None:
    """A young job's claim is at most one step of growth away."""
    seconds = due_to_need(8)
    outlook = forecast(job_due(seconds, has=(1, 1)), NOW, PRICED)._replace(learning=True, measured=True)
    claim = _claim(outlook)
    assert claim.workers + claim.servers <= 2 * PRICED.growth_factor
    assert _claim(outlook._replace(measured=False)) == Allocation(1, 1), "first the present size is measured"


def learning_job(seconds: float, has: tuple[int, int], *, flat: bool) -> Outlook:
    """Of which the smallest size alone is measured, well or so that more workers can hardly make it faster."""
    speed = law(compute=0.01, fixed=0.0, transfer=0.0, per_task=0.4) if flat else LAW
    at = [(1, 1), (2, 1), (1, 2)] if flat else [(1, 1)]
    job = replace(job_due(seconds, has=has), speed_samples=samples(speed, at))
    return forecast(job, NOW, Settings())._replace(learning=True, measured=has in at)


@pytest.mark.parametrize("seconds", [200.0, 1000.0, 2000.0, 3000.0, 4000.0, 6000.0, 9000.0, 12_000.0])
@pytest.mark.parametrize("flat", [False, True])
def test_what_is_claimed_to_be_measured_is_kept_until_it_is(seconds: float, flat: bool) -> None:
    """A size that was claimed a moment ago is no reason to say that the deadline cannot be met after all."""
    before = limits_of(learning_job(seconds, (1, 1), flat=flat), ROOM, NOW, Settings())
    assert before is not None
    if before.claim is None:
        return
    has = before.claim.workers, before.claim.servers
    after = limits_of(learning_job(seconds, has, flat=flat), ROOM, NOW, Settings())
    assert after is not None
    assert after.claim == before.claim


def test_nothing_is_measured_for_a_deadline_that_no_size_can_meet() -> None:
    """Not even at the high end of what its speeds may be."""
    found = limits_of(learning_job(1500.0, (1, 1), flat=True), ROOM, NOW, Settings())
    assert found is not None
    assert found.claim is None
    assert found.reason is Reason.DEADLINE_CANNOT_BE_MET


def test_what_might_be_in_time_is_measured() -> None:
    found = limits_of(learning_job(2600.0, (1, 1), flat=False), ROOM, NOW, Settings())
    assert found is not None
    assert found.note is not None
    assert found.note.endswith("is still being measured.")
    assert found.claim is not None
    assert found.claim.workers > 1


def _claim(outlook: Outlook) -> Allocation:
    found = limits_of(outlook, ROOM, NOW, PRICED)
    assert found is not None
    assert found.claim is not None
    return found.claim


def test_a_deadline_moves_a_job_to_a_faster_type() -> None:
    spec = gpu_spec("k80", "v100", maximum=2, rule=ConvergenceRule(max_steps=2000))
    nodes = (gpu_node("fast", {"v100": 4}), gpu_node("slow", {"k80": 4}))
    job = a_job("a", has=(1, 1), nodes="slow", spec=spec, measured=measured_on("k80", ALL_SIZES))
    # It has only just begun: without a deadline, moving would not pay.
    job = replace(job, allocation=Allocation(1, 1, "k80"), started_at=NOW - 0.5)
    relaxed, _ = next_round(Snapshot(NOW, nodes, (job,)), OPTIMUS)
    assert relaxed.jobs[0].allocation.gpu_type == "k80"
    due = replace(job, spec=replace(spec, deadline_at=NOW + 700.0))
    pressed, outcome = next_round(Snapshot(NOW, nodes, (due,)), OPTIMUS)
    assert pressed.jobs[0].allocation.gpu_type == "v100"
    assert "To meet its deadline" in outcome.decisions[0].message


# --- budgets ---------------------------------------------------------------------------------------------------------


def cost_to_end(job: Job, size: Allocation, steps: float = 10_000.0) -> float:
    outlook = forecast(job, NOW, PRICED)
    return steps / outlook.speeds.at(size) * cost_per_second(job.spec, size, PRICED)


@hypothesis_settings(max_examples=40, deadline=None)
@given(budget=st.floats(0.5, 40.0))
def test_no_size_is_allowed_that_the_budget_does_not_pay_for(budget: float) -> None:
    job = job_due(None, max_cost=budget)
    outlook, found = forecast(job, NOW, PRICED), limits(job)
    most = found.outlook.maximum
    possible = list(sizes(outlook, ROOM))
    cheapest = min(cost_to_end(job, size) for size in possible)
    if cheapest > budget or outlook.forecast.rule == "max_cost":
        assert most.workers + most.servers <= 4, "only the cheapest steps"
    elif found.reason is Reason.WITHIN_BUDGET:
        assert cost_to_end(job, most) <= budget
        faster = [size for size in possible if outlook.speeds.at(size) > 1.001 * outlook.speeds.at(most)]
        assert all(cost_to_end(job, size) > PRICED.budget_margin * budget for size in faster if size != job.allocation)
    else:
        best = max(possible, key=outlook.speeds.at)
        assert most.workers >= best.workers


def test_a_job_on_a_budget_is_given_less_and_told_why() -> None:
    rich, poor = (job_due(None, steps=5000, max_cost=budget) for budget in (1000.0, 4.0))
    decisions = [plan(a_snapshot([job], cluster(16)), OPTIMUS, PRICED).decisions[0] for job in (rich, poor)]
    assert decisions[0].allocation.workers > decisions[1].allocation.workers
    assert "Of its budget 4 is left" in decisions[1].message
    assert "budget" not in decisions[0].message


def test_without_prices_a_budget_limits_nothing() -> None:
    assert limits_of(forecast(job_due(None, max_cost=0.01), NOW, Settings()), ROOM, NOW, Settings()) is None


def test_what_was_spent_counts() -> None:
    job = job_due(None, max_cost=10.0)
    assert limits(replace(job, spent=9.0)).outlook.maximum.workers < limits(job).outlook.maximum.workers


def test_a_budget_moves_a_job_to_the_type_with_the_cheapest_steps() -> None:
    """Seven times as fast for five and a half times the price: the newer type has the cheaper steps."""
    spec = gpu_spec("k80", "v100", maximum=1, rule=ConvergenceRule(max_steps=100_000, max_cost=3.0))
    nodes = (gpu_node("fast", {"v100": 4}), gpu_node("slow", {"k80": 4}))
    job = a_job(
        "a",
        has=(1, 1),
        nodes="slow",
        spec=spec,
        measured=(*measured_on("k80", [(1, 1)]), *measured_on("v100", [(1, 1)])),
    )
    job = replace(job, allocation=Allocation(1, 1, "k80"), started_at=NOW - 0.5)
    after, _ = next_round(Snapshot(NOW, nodes, (job,)), OPTIMUS, replace(PRICES, price_per_core_hour=0.0))
    assert after.jobs[0].allocation.gpu_type == "v100"
