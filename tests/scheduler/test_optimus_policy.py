"""The default policy: first grants, growth, and which changes are worth making."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.scheduler.builders import ALL_SIZES, NOW, SpeedLaw, a_cluster, a_job, a_snapshot, a_spec, law, samples

from optimus_scheduler.allocate.optimus.guarantees import turn_of
from optimus_scheduler.allocate.policies import AllocationInput, Grant, policy_named
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    EndedJob,
    Job,
    JobSpec,
    JobState,
    Reason,
    Resources,
    SilentRun,
    SpeedSample,
)
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

SETTINGS = Settings()
GIB = 2**30


def outlooks(*jobs: Job) -> tuple[Outlook, ...]:
    return forecast_all(jobs, NOW, SETTINGS)


def allocate(jobs: Sequence[Job], cpu: float, leaving: float = 0.0) -> Mapping[str, Grant]:
    inputs = AllocationInput(outlooks(*jobs), Resources(cpu, 64 * GIB), Resources(leaving))
    return policy_named("optimus").allocate(inputs, SETTINGS)


def size(grant: Grant) -> tuple[int, int]:
    return grant.allocation.workers, grant.allocation.servers


def known(name: str, *, speed: SpeedLaw | None = None, has: tuple[int, int] = (1, 1), **fields: object) -> Job:
    """A running job whose speed is known well, its present size included."""
    speed = speed or law()
    return a_job(name, has=has, measured=samples(speed, [*ALL_SIZES, has]), **fields)  # type: ignore[arg-type]


def paused(name: str, *, speed: SpeedLaw | None = None, seconds: float = 60, spec: JobSpec | None = None) -> Job:
    """A job without tasks whose speed is known from before."""
    measured = samples(speed or law(), ALL_SIZES)
    return a_job(name, spec=spec, state=JobState.PAUSED, allocated_at=NOW - seconds, measured=measured)


def a_ring(least: int, most: int) -> JobSpec:
    return replace(a_spec(minimum=(least, 0), maximum=(most, 0)), architecture=Architecture.ALLREDUCE)


# --- first grants ----------------------------------------------------------------------------------------------------


def test_a_new_job_starts_with_its_minimum() -> None:
    grants = allocate([a_job("a"), a_job("b", spec=a_spec(minimum=(2, 3)))], 32)
    assert {name: size(grant) for name, grant in grants.items()} == {"a": (1, 1), "b": (2, 3)}


def test_a_job_that_has_just_started_is_not_paused() -> None:
    grants = allocate([a_job("new", submitted_at=NOW - 1000), known("running")], 3)
    assert size(grants["running"])[0] >= 1
    assert grants["new"].reason is Reason.WAITING_FOR_RESOURCES


def test_a_long_job_is_paused_for_a_short_one() -> None:
    """After a while, and only where both do not fit."""
    long = known("long", spec=a_spec(rule=ConvergenceRule(max_steps=100_000)), allocated_at=NOW - 1000)
    short = paused("short", spec=a_spec(rule=ConvergenceRule(max_steps=100)))
    assert allocate([long, short], 3)["long"].allocation.is_empty
    assert size(allocate([long, short], 4)["long"]) == (1, 1)


def test_where_not_all_minima_fit_a_short_job_may_grow_instead() -> None:
    """Its further tasks are worth more than the first ones of long jobs."""
    short = known("short", spec=a_spec(rule=ConvergenceRule(max_steps=1000)), allocated_at=NOW - 1000)
    rule = ConvergenceRule(max_steps=1_000_000)
    long = [paused(f"long-{number}", spec=a_spec(rule=rule)) for number in range(3)]
    crowded = allocate([short, *long], 4)
    assert size(crowded["short"]) == (2, 2)
    assert all(crowded[job.id].allocation.is_empty for job in long)
    # Among equals nobody's second worker is worth as much as another's first one.
    equal = known("equal", spec=a_spec(rule=rule), allocated_at=NOW - 1000)
    assert sorted(map(size, allocate([equal, *long], 4).values())) == [(0, 0), (0, 0), (1, 1), (1, 1)]


def test_the_queue_prefers_short_jobs() -> None:
    """Both are known from before a pause."""
    short = paused("short", spec=a_spec(rule=ConvergenceRule(max_steps=100)))
    long = paused("long", spec=a_spec(rule=ConvergenceRule(max_steps=100_000)))
    grants = allocate([long, short], 2)
    assert size(grants["short"]) == (1, 1)
    assert grants["long"].reason is Reason.WAITING_FOR_RESOURCES


def test_waiting_outweighs_length_in_the_end() -> None:
    """1000 steps take 17 minutes: after twice that and five minutes more it is the long one's turn."""
    short = paused("short", seconds=5, spec=a_spec(rule=ConvergenceRule(max_steps=100)))
    rule = ConvergenceRule(max_steps=1000)
    waits, waited = (paused("waits", seconds=s, spec=a_spec(rule=rule)) for s in (2200, 2500))
    assert allocate([short, waits], 2)["waits"].reason is Reason.WAITING_FOR_RESOURCES
    assert size(allocate([short, waited], 2)["waits"]) == (1, 1)


def test_a_job_waits_at_least_for_what_was_there_before_it() -> None:
    """Both need the whole cluster, and the first is the shorter one: to pause it for the other's turn gains nothing."""
    whole = {"minimum": (2, 2), "maximum": (2, 2)}
    first = known("first", has=(2, 2), spec=a_spec(rule=ConvergenceRule(max_steps=40_000), **whole))  # type: ignore[arg-type]
    first = replace(first, submitted_at=NOW - 90_000, allocated_at=NOW - 80_000)
    (outlook,) = outlooks(first)
    left = outlook.remaining_seconds(outlook.present)
    assert left > SETTINGS.most_patience_seconds + 60
    longer = a_spec(rule=ConvergenceRule(max_steps=60_000), **whole)  # type: ignore[arg-type]
    later = replace(paused("later", seconds=0, spec=longer), submitted_at=NOW - 10, state=JobState.QUEUED)
    for waited, starts in ((SETTINGS.most_patience_seconds + 30, False), (left - 30, False), (left + 30, True)):
        waits = replace(paused("waits", seconds=waited, spec=longer), submitted_at=NOW - 85_000)
        grants = allocate([first, waits, later], 4)
        assert grants["waits"].allocation.is_empty != starts
        assert grants["waits"].note is None, "it has not waited for so long, or starts"
        assert grants["first"].allocation.is_empty == starts


def test_small_jobs_pass_a_large_one_only_for_a_while() -> None:
    large = a_spec(minimum=(4, 4))
    running, small = known("running", spec=a_spec(maximum=(1, 1))), a_job("small", submitted_at=NOW)
    fresh = allocate([running, small, a_job("large", spec=large, submitted_at=NOW - 60)], 8)
    assert size(fresh["small"]) == (1, 1)
    old = allocate([running, small, a_job("large", spec=large, submitted_at=NOW - 1501)], 8)
    assert old["small"].reason is Reason.WAITING_FOR_RESOURCES


def test_a_job_that_can_never_fit_holds_nobody_up() -> None:
    huge = a_job("huge", spec=a_spec(minimum=(9, 9)), submitted_at=NOW - 5000)
    assert size(allocate([huge, a_job("small", submitted_at=NOW)], 8)["small"]) == (1, 1)


def test_somebody_who_waits_gets_room_from_those_who_have_more() -> None:
    grants = allocate([known("a", has=(4, 4)), a_job("new")], 8)
    assert size(grants["new"]) == (1, 1)
    assert sum(size(grants["a"])) == 6
    assert grants["a"].reason is Reason.MINIMUM_ELSEWHERE


# --- growth ----------------------------------------------------------------------------------------------------------


def test_resources_go_where_they_save_most() -> None:
    scales = known("scales", speed=law(compute=2.0, fixed=0.01, transfer=0.02, per_task=0.001))
    stuck = known("stuck", speed=law(compute=0.2, fixed=1.0, transfer=0.02, per_task=0.001))
    grants = allocate([scales, stuck], 12)
    assert sum(size(grants["scales"])) >= 9
    assert sum(size(grants["stuck"])) <= 3


def test_growth_ends_where_tasks_do_not_help() -> None:
    flat = law(per_task=0.1)
    best = size(allocate([known("a", speed=flat)], 100)["a"])
    assert sum(best) < 12
    assert allocate([known("a", speed=flat, has=best)], 100)["a"].reason is Reason.NO_FURTHER_GAIN


def test_a_pair_is_taken_when_neither_half_helps() -> None:
    """Servers and workers that are only useful together (reference, section 3.5)."""
    grants = allocate([known("a", speed=law(compute=0.6, fixed=0.0, transfer=0.6, per_task=0.0))], 4)
    assert size(grants["a"]) == (2, 2)


def test_the_gain_of_one_more_task_is_not_that_of_a_size_several_tasks_away() -> None:
    """What it would rather have is a worker and a server more, for which there is no room: one alone does not help."""
    grant = allocate([known("a", speed=law(compute=0.6, fixed=0.0, transfer=0.6, per_task=0.05))], 3)["a"]
    assert (size(grant), grant.reason) == ((1, 1), Reason.CLUSTER_FULL)
    assert grant.next_gain is not None
    assert grant.next_gain <= 0


def test_the_cluster_is_not_full_for_a_job_of_which_a_larger_size_fits_that_is_faster() -> None:
    """2 workers and 2 servers would be best and fit no empty cluster of three; 2 workers and 1 server do."""
    best_together = law(compute=0.6, fixed=0.0, transfer=0.2, per_task=0.0)
    grant = allocate([known("a", speed=best_together, rescale_seconds=(1e6,) * 5)], 3)["a"]
    assert (size(grant), grant.reason) == ((1, 1), Reason.NOT_WORTH_RESCALING)
    assert grant.ideal is not None
    assert sum((grant.ideal.workers, grant.ideal.servers)) == 3


def test_priority_multiplies() -> None:
    jobs = [known("plain"), known("urgent", spec=a_spec(priority=4.0))]
    grants = allocate(jobs, 10)
    assert sum(size(grants["urgent"])) > sum(size(grants["plain"]))


def test_small_tasks_still_fit_beside_a_large_one_that_does_not() -> None:
    large = known("large", spec=a_spec(worker_cpu=4.0, server_cpu=4.0))
    small = known("small", spec=a_spec(maximum=(3, 1)))
    grants = allocate([large, small], 12)
    assert size(grants["large"]) == (1, 1)
    assert size(grants["small"]) == (3, 1)


def test_the_best_size_does_not_fit_but_a_smaller_one_does() -> None:
    """Its speed per share grows with its workers: what it would rather have does not fit beside the minimum of the
    other. Its minimum does, and comes before the growth of a job that takes a thousand times as long."""
    superlinear = law(compute=0.8, fixed=0.0, transfer=0.0, per_task=0.0)
    spec = a_spec(minimum=(2, 1), maximum=(8, 1), rule=ConvergenceRule(max_steps=1010))
    waiting = replace(paused("short", speed=superlinear, spec=spec), step=1000)
    long = known("long", speed=superlinear, has=(3, 1), spec=a_spec(maximum=(8, 1)))
    grants = allocate([waiting, long], 5)
    assert size(grants["short"]) == (2, 1)
    assert size(grants["long"]) == (1, 1)


def test_limits_are_kept() -> None:
    grants = allocate([known("a", spec=a_spec(maximum=(2, 1)))], 64)
    assert size(grants["a"]) == (2, 1)


def test_at_its_maximum() -> None:
    grants = allocate([known("a", has=(2, 1), spec=a_spec(maximum=(2, 1)))], 64)
    assert grants["a"].reason is Reason.AT_MAXIMUM


# --- learning --------------------------------------------------------------------------------------------------------


def test_a_size_is_measured_before_it_changes() -> None:
    grants = allocate([a_job("a", has=(1, 1), step=100)], 16)
    assert (size(grants["a"]), grants["a"].reason) == ((1, 1), Reason.LEARNING_SPEED)


@pytest.mark.parametrize("needed", [1, 2])
@pytest.mark.parametrize("measured", [(), ((1, 0),), ((1, 0), (4, 0))])
def test_a_size_that_is_not_measured_gives_no_more_than_another_job_takes(
    measured: Sequence[tuple[int, int]], needed: int
) -> None:
    before = samples(lambda w, _p: 1.0 / (0.8 / w + 0.05), measured, at=NOW - 200)
    large = a_job("large", has=(4, 0), spec=a_ring(1, 4), measured=before, allocated_at=NOW - 4)
    grants = allocate([large, a_job("small", spec=a_ring(needed, needed))], 4)
    assert {name: size(grant) for name, grant in grants.items()} == {"large": (4 - needed, 0), "small": (needed, 0)}


@pytest.mark.parametrize(("most", "reason"), [(1, Reason.GRANTED_MORE), (2, Reason.LEARNING_SPEED)])
def test_a_job_of_one_size_has_no_speed_to_learn(most: int, reason: Reason) -> None:
    grants = allocate([a_job("a", spec=a_spec(maximum=(most, 1)))], 16)
    assert (size(grants["a"]), grants["a"].reason) == ((1, 1), reason)


def test_a_young_job_grows_fourfold_at_most() -> None:
    speed = law(compute=10.0, fixed=0.0, transfer=0.01, per_task=0.0)
    grants = allocate([a_job("a", has=(1, 1), measured=samples(speed, [(1, 1)]), step=1000)], 32)
    assert 4 < sum(size(grants["a"])) <= 8
    assert grants["a"].reason is Reason.LEARNING_SPEED


# --- worth a change --------------------------------------------------------------------------------------------------


def test_near_its_end_a_job_keeps_what_it_has() -> None:
    spec = a_spec(rule=ConvergenceRule(max_steps=1000))
    grants = allocate([known("a", has=(2, 2), spec=spec, step=998)], 16)
    assert (size(grants["a"]), grants["a"].reason) == ((2, 2), Reason.NOT_WORTH_RESCALING)


def test_expensive_changes_are_not_made() -> None:
    spec = a_spec(rule=ConvergenceRule(max_steps=200))
    cheap, expensive = (known("a", spec=spec, rescale_seconds=(stop,) * 5) for stop in (0.2, 300.0))
    assert sum(size(allocate([cheap], 16)["a"])) > 2
    assert allocate([expensive], 16)["a"].reason is Reason.NOT_WORTH_RESCALING


def test_free_room_does_not_make_anybody_shrink() -> None:
    grants = allocate([known("a", has=(9, 9), speed=law(per_task=0.002))], 64)
    assert size(grants["a"])[0] >= 8


def test_tasks_move_to_who_needs_them() -> None:
    rich, poor = known("rich", has=(7, 7)), known("poor")
    grants = allocate([rich, poor], 16)
    assert sum(size(grants["poor"])) >= 6
    assert grants["rich"].reason is Reason.BETTER_USED_ELSEWHERE


def test_room_that_comes_by_itself_is_waited_for() -> None:
    scales = law(compute=2.0, per_task=0.001)
    rich, poor = known("rich", has=(7, 7), speed=scales), known("poor", speed=scales)
    assert size(allocate([rich, poor], 16)["rich"]) != (7, 7)
    grants = allocate([rich, poor], 16, leaving=8)
    assert size(grants["rich"]) == (7, 7)
    assert grants["poor"].reason is Reason.NOT_WORTH_RESCALING
    assert grants["poor"].note == "Other jobs would have to give up the room for that."


def test_small_differences_move_nothing() -> None:
    """Two jobs alike that share unevenly by one task: within the error of the models."""
    grants = allocate([known("a", has=(4, 4)), known("b", has=(4, 3))], 15)
    assert {name: size(grant) for name, grant in grants.items()} == {"a": (4, 4), "b": (4, 3)}


# --- small clusters --------------------------------------------------------------------------------------------------


def test_a_free_slot_is_used_where_one_of_each_does_not_fit() -> None:
    """One worker and one server gain most together; where there is room for one task only, a worker is better."""
    speed = law(transfer=0.2)
    growing = known("a", speed=speed, allocated_at=NOW - 300)
    full = known("b", speed=speed, spec=a_spec(maximum=(1, 1)))
    assert size(allocate([growing, full], 6)["a"]) == (2, 2)
    assert size(allocate([growing, full], 5)["a"]) == (2, 1)


def test_new_tasks_that_would_join_shortly_before_the_end_are_not_started() -> None:
    """A change saves nothing before the new tasks take part, however short it stops training."""
    short = a_spec(rule=ConvergenceRule(max_steps=25))

    def running(spec: JobSpec, *joined: float) -> Job:
        return known("a", spec=spec, rescale_seconds=(0.03,) * 4, allocated_at=NOW - 20, joining_seconds=joined)

    soon = running(short)
    assert size(allocate([soon], 8)["a"]) > (1, 1)
    late = running(short, 30.0, 31.0, 29.0)
    assert size(allocate([late], 8)["a"]) == (1, 1)
    swap = law(transfer=0.01, per_task=0.01)  # where servers are of little use
    wide = a_spec(rule=ConvergenceRule(max_steps=60), maximum=(16, 2))
    at = {"speed": swap, "spec": wide, "has": (2, 2), "rescale_seconds": (0.03,) * 4, "allocated_at": NOW - 60}
    assert size(allocate([known("a", **at)], 4)["a"]) == (3, 1)  # type: ignore[arg-type]
    assert size(allocate([known("a", joining_seconds=(30.0,), **at)], 4)["a"]) == (2, 1)  # type: ignore[arg-type]
    long = running(a_spec(rule=ConvergenceRule(max_steps=2500)), 30.0)
    assert size(allocate([long], 8)["a"]) > (1, 1)


def test_room_is_kept_for_a_job_that_has_waited_as_long_as_it_is_told() -> None:
    """It needs more at once than comes free: those that came later pass it until then, and not any more."""
    running = known("running", spec=a_spec(minimum=(1, 1), maximum=(1, 1)))
    gang = a_job("gang", spec=a_spec(minimum=(2, 1)), submitted_at=NOW - 400.0)
    (outlook,) = outlooks(gang)
    turn = turn_of(outlook, SETTINGS)
    patience = turn.in_seconds + 400.0
    assert turn.patience == pytest.approx(patience)
    assumed = SETTINGS.patience_seconds + SETTINGS.patience_part * SETTINGS.typical_seconds
    assert patience == pytest.approx(assumed), "nothing tells its length"
    for waited, passes in ((patience - 1.0, True), (patience + 1.0, False)):
        waits = a_job("gang", spec=a_spec(minimum=(2, 1)), submitted_at=NOW - waited)
        grants = allocate([running, waits, a_job("later", submitted_at=NOW - 10.0)], 4)
        assert grants["gang"].allocation.is_empty
        assert grants["later"].allocation.is_empty != passes
        assert grants["gang"].goes_first != passes


def test_the_turn_of_a_job_whose_length_is_known_is_told_by_what_it_needs_alone() -> None:
    (outlook,) = outlooks(known("a", spec=a_spec(rule=ConvergenceRule(max_steps=60))))
    turn, alone = turn_of(outlook, SETTINGS), outlook.remaining_seconds(outlook.minimum)
    waits = SETTINGS.patience_seconds + SETTINGS.patience_part * alone
    assert turn.patience == pytest.approx(waits)


@pytest.mark.parametrize("tells", ["no step", "its steps"])
def test_the_turn_of_a_script_goes_by_how_long_ended_runs_of_its_command_took(tells: str) -> None:
    """And not by the time that is typical of jobs: it is overdue as soon as a job of that length is."""
    model = law()
    run = EndedJob("before", "t", "default", None, device="CPU core", silent=SilentRun(1, 1, 40.0))
    if tells == "its steps":
        run = replace(run, silent=None, total_steps=40, speed_samples=samples(model, ALL_SIZES))
    waits = a_job("script", spec=a_spec(rule=ConvergenceRule(max_steps=None)), submitted_at=NOW - 1.0)
    (outlook,) = outlooks(replace(waits, similar=(run,)))
    turn, (unknown,) = turn_of(outlook, SETTINGS), outlooks(waits)
    seconds = 40.0 if tells == "no step" else 40.0 / outlook.speeds.at(outlook.minimum)
    assert turn.patience == pytest.approx(SETTINGS.patience_seconds + SETTINGS.patience_part * seconds, rel=0.01)
    assert turn_of(unknown, SETTINGS).patience > turn.patience


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_ended_runs_of_its_command_took_ranks_a_script_that_tells_no_length(has_begun: bool) -> None:
    """One with 3 s left goes before a new one of 40 s, and that one before one of 1,000 s; none told, it goes
    first."""
    spec = replace(a_spec(minimum=(1, 0), maximum=(1, 0)), architecture=Architecture.SCRIPT)
    measured = samples(lambda w, p: float(w), [(1, 0)])

    def ends_after(name: str, steps: int, done: int) -> Job:
        whole = replace(spec, convergence=ConvergenceRule(max_steps=steps))
        job = a_job(name, spec=whole, submitted_at=NOW - 60.0, measured=measured, attained_share_seconds=done)
        return replace(job, started_at=NOW - 50.0, step=done)

    run = EndedJob("before", "t", "default", None, architecture=Architecture.SCRIPT, device="CPU core")
    run = replace(run, global_batch_size=spec.global_batch_size, total_steps=40, speed_samples=measured)
    silent = replace(spec, convergence=ConvergenceRule(max_steps=None))
    new = a_job("new", spec=silent, submitted_at=NOW - 10.0)
    if has_begun:  # and told steps, but no end
        new = replace(new, started_at=NOW - 9.0, step=5, speed_samples=measured)

    def order(*jobs: Job) -> list[str]:
        decisions = plan(a_snapshot(jobs, a_cluster(1.0)), policy_named("optimus")).decisions
        return [each.job_id for each in decisions if each.allocation.workers]

    nearly, longer = ends_after("nearly", 200, done=197), ends_after("longer", 1200, done=200)
    told = replace(new, similar=(run, replace(run, id="again")))
    assert order(nearly, told) == ["nearly"]
    assert order(longer, told) == ["new"]
    assert order(nearly, new) == ["new"]


def test_no_gain_per_share_is_told_of_a_size_that_takes_no_larger_share() -> None:
    """A worker in the place of a server: 2 and 1 instead of 1 and 2."""
    job = a_job("a", has=(1, 2), spec=a_spec(maximum=(3, 2)), measured=samples(law(compute=4.0), [(1, 2), (4, 6)]))
    decision = plan(a_snapshot([job], a_cluster(4)), policy_named("optimus")).decisions[0]
    assert decision.allocation == Allocation(2, 1)
    assert decision.gain is not None, "of the second worker: it takes a larger share than one with one server"
    assert 0 < decision.gain < 1e3
    assert decision.next_gain is None, "no size with one task more is worth its share"


def test_of_equal_jobs_the_older_starts_first_whatever_speeds_are_believed() -> None:
    """What is worth the same but for the rounding of different speeds is worth the same."""
    one = replace(a_spec(minimum=(1, 0), maximum=(1, 0)), architecture=Architecture.SCRIPT)
    one = replace(one, convergence=ConvergenceRule())

    def waits(name: str, age: float, speed: float) -> Job:
        run = EndedJob(
            f"run-of-{name}",
            "t",
            "default",
            None,
            architecture=Architecture.SCRIPT,
            global_batch_size=one.global_batch_size,
            speed_samples=(SpeedSample(1, 0, speed, n_steps=20, at=NOW - 500.0),),
            total_steps=600,
        )
        return a_job(name, spec=one, submitted_at=NOW - age, similar=(run,))

    for n in range(20):
        jobs = [waits(f"{9 - k}", 90.0 - k, 6.1 + 0.37 * n + 0.013 * k) for k in range(4)]
        decisions = plan(a_snapshot(jobs, a_cluster(1.0, 1.0, 1.0)), policy_named("optimus")).decisions
        assert [each.job_id for each in decisions if each.allocation.workers] == ["7", "8", "9"], n
