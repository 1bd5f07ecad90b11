"""The default policy: first grants, growth, and which changes are worth making."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, NOW, SpeedLaw, a_job, a_spec, law, samples

from optimus_scheduler.forecast import forecast_all
from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies import Contest, Grant, policy_named
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import Allocation, ConvergenceRule, Job, JobSpec, JobState, Reason, Resources

SETTINGS = Settings()
GIB = 2**30


def outlooks(*jobs: Job) -> tuple[Outlook, ...]:
    return forecast_all(jobs, NOW, SETTINGS)


def allocate(jobs: Sequence[Job], cpu: float, leaving: float = 0.0) -> Mapping[str, Grant]:
    contest = Contest(outlooks(*jobs), Resources(cpu, 64 * GIB), Resources(leaving))
    return policy_named("optimus").allocate(contest, SETTINGS)


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


# --- first grants ----------------------------------------------------------------------------------------------------


def test_a_new_job_starts_with_its_minimum() -> None:
    grants = allocate([a_job("a"), a_job("b", spec=a_spec(minimum=(2, 3)))], 32)
    assert {name: size(grant) for name, grant in grants.items()} == {"a": (1, 1), "b": (2, 3)}


def test_running_jobs_come_before_the_queue() -> None:
    grants = allocate([a_job("new", submitted_at=NOW - 1000), known("running")], 3)
    assert size(grants["running"])[0] >= 1
    assert grants["new"].reason is Reason.WAITING_FOR_RESOURCES


def test_the_queue_prefers_short_jobs() -> None:
    """Both are known from before a pause."""
    short = paused("short", spec=a_spec(rule=ConvergenceRule(max_steps=100)))
    long = paused("long", spec=a_spec(rule=ConvergenceRule(max_steps=100_000)))
    grants = allocate([long, short], 2)
    assert size(grants["short"]) == (1, 1)
    assert grants["long"].reason is Reason.WAITING_FOR_RESOURCES


def test_waiting_outweighs_length_in_the_end() -> None:
    short = paused("short", seconds=5, spec=a_spec(rule=ConvergenceRule(max_steps=100)))
    waited = paused("waited", seconds=300, spec=a_spec(rule=ConvergenceRule(max_steps=1000)))
    assert size(allocate([short, waited], 2)["waited"]) == (1, 1)


def test_small_jobs_pass_a_large_one_only_for_a_while() -> None:
    large = a_spec(minimum=(4, 4))
    running, small = known("running", spec=a_spec(maximum=(1, 1))), a_job("small", submitted_at=NOW)
    fresh = allocate([running, small, a_job("large", spec=large, submitted_at=NOW - 60)], 8)
    assert size(fresh["small"]) == (1, 1)
    old = allocate([running, small, a_job("large", spec=large, submitted_at=NOW - 301)], 8)
    assert old["small"].reason is Reason.WAITING_FOR_RESOURCES


def test_a_job_that_can_never_fit_holds_nobody_up() -> None:
    huge = a_job("huge", spec=a_spec(minimum=(9, 9)), submitted_at=NOW - 5000)
    assert size(allocate([huge, a_job("small", submitted_at=NOW)], 8)["small"]) == (1, 1)


def test_somebody_who_waits_gets_room_from_those_who_have_more() -> None:
    grants = allocate([known("a", has=(4, 4)), a_job("new")], 8)
    assert size(grants["new"]) == (1, 1)
    assert sum(size(grants["a"])) == 6
    assert grants["a"].reason is Reason.BETTER_USED_ELSEWHERE


# --- growth ----------------------------------------------------------------------------------------------------------


def test_resources_go_where_they_save_most() -> None:
    scales = known("scales", speed=law(compute=2.0, fixed=0.01, transfer=0.02, per_task=0.001))
    stuck = known("stuck", speed=law(compute=0.2, fixed=1.0, transfer=0.02, per_task=0.001))
    grants = allocate([scales, stuck], 12)
    assert sum(size(grants["scales"])) == 10
    assert size(grants["stuck"]) == (1, 1)
    assert grants["stuck"].reason is Reason.BETTER_USED_ELSEWHERE


def test_growth_ends_where_tasks_do_not_help() -> None:
    flat = law(per_task=0.1)
    best = size(allocate([known("a", speed=flat)], 100)["a"])
    assert sum(best) < 12
    assert allocate([known("a", speed=flat, has=best)], 100)["a"].reason is Reason.NO_FURTHER_GAIN


def test_a_pair_is_taken_when_neither_half_helps() -> None:
    """Servers and workers that are only useful together (reference, section 3.5)."""
    grants = allocate([known("a", speed=law(compute=0.6, fixed=0.0, transfer=0.6, per_task=0.0))], 4)
    assert size(grants["a"]) == (2, 2)


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


def test_a_young_job_at_most_doubles() -> None:
    speed = law(compute=10.0, fixed=0.0, transfer=0.01, per_task=0.0)
    grants = allocate([a_job("a", has=(1, 1), measured=samples(speed, [(1, 1)]), step=1000)], 32)
    assert sum(size(grants["a"])) == 4
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
    grants = allocate([known("a", has=(9, 9), speed=law(per_task=0.01))], 64)
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
    assert grants["poor"].reason is Reason.BETTER_USED_ELSEWHERE


def test_small_differences_move_nothing() -> None:
    """Two jobs alike that share unevenly by one task: within the error of the models."""
    grants = allocate([known("a", has=(4, 4)), known("b", has=(4, 3))], 15)
    assert {name: size(grant) for name, grant in grants.items()} == {"a": (4, 4), "b": (4, 3)}


# --- properties ------------------------------------------------------------------------------------------------------

laws = st.builds(
    law,
    compute=st.floats(0.1, 3.0),
    fixed=st.floats(0.0, 0.3),
    transfer=st.floats(0.005, 0.3),
    per_task=st.floats(0.0005, 0.03),
)


def objective(jobs: Sequence[Outlook], grants: Mapping[str, Grant]) -> float:
    """Σ ln f: what the log-ratio gain climbs."""
    return sum(math.log(job.speeds.at(grants[job.id].allocation)) for job in jobs)


def best_objective(jobs: Sequence[Outlook], cpu: int) -> float:
    """The largest Σ ln f over all sizes that fit, by trying them all."""
    sizes = [(w, p) for w, p in product(range(1, cpu), repeat=2) if w + p <= cpu - 2 * (len(jobs) - 1)]
    return max(
        sum(math.log(job.speeds.at(Allocation(*each))) for job, each in zip(jobs, chosen, strict=True))
        for chosen in product(sizes, repeat=len(jobs))
        if sum(w + p for w, p in chosen) <= cpu
    )


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(laws, min_size=1, max_size=2), st.integers(4, 10))
def test_close_to_the_best_of_all_sizes(speeds: list[SpeedLaw], cpu: int) -> None:
    """Never less than 85 % of the possible improvement over the minima, where there is any worth having."""
    jobs = outlooks(*(paused(f"j{i}", speed=speed) for i, speed in enumerate(speeds)))
    grants = allocate([job.job for job in jobs], cpu)
    least = sum(math.log(job.speeds.at(job.minimum)) for job in jobs)
    possible = best_objective(jobs, cpu) - least
    assume(possible > 0.1)
    assert objective(jobs, grants) - least >= 0.85 * possible


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(laws, min_size=1, max_size=4), st.integers(8, 40), st.integers(1, 16))
def test_more_capacity_does_not_hurt(speeds: list[SpeedLaw], cpu: int, more: int) -> None:
    """The objective never falls by more than 5 % speed of one job (greedy may choose worse by a task)."""
    jobs = outlooks(*(paused(f"j{i}", speed=speed) for i, speed in enumerate(speeds)))
    before, after = (objective(jobs, allocate([job.job for job in jobs], cores)) for cores in (cpu, cpu + more))
    assert after >= before - 0.05


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(laws, st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=6),
    st.integers(0, 4),
    st.integers(2, 40),
)
def test_a_second_round_changes_nothing(running: list[tuple[SpeedLaw, int, int]], queued: int, cpu: int) -> None:
    """Once changed and measured again, the same jobs in the same world keep what they have: nothing oscillates."""
    jobs = [known(f"r{i}", speed=speed, has=(w, p)) for i, (speed, w, p) in enumerate(running)]
    jobs += [paused(f"q{i}") for i in range(queued)]
    grants = allocate(jobs, cpu)
    later = [_having(job, grants[job.id]) for job in jobs]
    again = allocate(later, cpu)
    more = allocate([_having(job, again[job.id]) for job in later], cpu)
    assert {name: size(grant) for name, grant in more.items()} == {name: size(grant) for name, grant in again.items()}


def _having(job: Job, grant: Grant) -> Job:
    """The job after it was given that, with the new size measured as its model predicted."""
    if grant.allocation.is_empty:
        return replace(job, allocation=grant.allocation, state=JobState.PAUSED)
    speed, here = outlooks(job)[0].speeds.at(grant.allocation), size(grant)
    elsewhere = [sample for sample in job.speed_samples if (sample.workers, sample.servers) != here]
    measured = (*elsewhere, *samples(lambda w, p: speed, [here]))
    return replace(
        job,
        allocation=grant.allocation,
        allocated_at=NOW - 60,
        state=JobState.RUNNING,
        speed_samples=measured,
    )


@pytest.mark.parametrize("policy", ["optimus", "optimus-paper", "fifo"])
@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(laws, st.integers(0, 6), st.integers(1, 6), st.tuples(st.integers(1, 3), st.integers(1, 3))),
        max_size=8,
    ),
    st.integers(0, 30),
    st.permutations(range(8)),
)
def test_grants_are_within_capacity_and_limits_whatever_the_order(
    policy: str, drawn: list[tuple[SpeedLaw, int, int, tuple[int, int]]], cpu: int, order: list[int]
) -> None:
    jobs = [
        known(
            f"j{i}", speed=speed, has=(max(w, least[0]), max(p, least[1])), spec=a_spec(minimum=least, maximum=(7, 7))
        )
        if w
        else a_job(f"j{i}", spec=a_spec(minimum=least))
        for i, (speed, w, p, least) in enumerate(drawn)
    ]
    contenders = outlooks(*jobs)
    shuffled = tuple(contenders[i] for i in order if i < len(contenders))
    capacity = Resources(float(cpu), 64 * GIB)
    grants = policy_named(policy).allocate(Contest(contenders, capacity), SETTINGS)
    assert policy_named(policy).allocate(Contest(shuffled, capacity), SETTINGS) == grants
    assert sum(sum(size(grant)) for grant in grants.values()) <= cpu
    for outlook in contenders:
        granted = grants[outlook.id].allocation
        if not granted.is_empty:
            assert outlook.minimum.workers <= granted.workers <= outlook.maximum.workers
            assert outlook.minimum.servers <= granted.servers <= outlook.maximum.servers
