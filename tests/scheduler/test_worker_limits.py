"""How many workers the jobs of one owner, or of one project, hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_job, a_snapshot, a_spec, law, samples
from tests.scheduler.constrained_worlds import next_round, trained

from optimus_scheduler.allocate.policies import POLICIES, policy_named
from optimus_scheduler.model import Decision, Job, Node, Quota, Reason, Resources, Snapshot, WorkerLimit
from optimus_scheduler.round import plan
from optimus_scheduler.what_if import what_gives_more

OPTIMUS = policy_named("optimus")
CLUSTER = (Node("node-0", Resources(24.0, 256 * GIB)),)
ADA = WorkerLimit(4, owner="ada")


def job_of(
    owner: str, name: str, *, has: tuple[int, int] = (0, 0), project: str = "p", age: float = 0.0, **spec: Any
) -> Job:
    whole = replace(a_spec(**spec), project=project)
    job = a_job(name, has=has, spec=whole, measured=samples(law(), ALL_SIZES))
    return replace(job, owner=owner, submitted_at=NOW - 1000.0 - age, started_at=NOW - 90.0 if any(has) else None)


def world_of(jobs: Sequence[Job], *limits: WorkerLimit, quotas: tuple[Quota, ...] = ()) -> Snapshot:
    return replace(a_snapshot(jobs, CLUSTER), worker_limits=limits, quotas=quotas)


def decided(world: Snapshot, policy: str = "optimus") -> dict[str, Decision]:
    return {decision.job_id: decision for decision in plan(world, policy_named(policy)).decisions}


def workers(world: Snapshot) -> dict[str, int]:
    return {job.id: job.allocation.workers for job in world.jobs}


def settled(world: Snapshot, rounds: int = 8) -> Snapshot:
    for _ in range(rounds):
        world, _ = next_round(world, OPTIMUS)
        world = trained(world, 60.0)
    return world


def test_jobs_share_the_limit_of_their_owner_and_leave_the_rest_to_others() -> None:
    jobs = [job_of("ada", "a0"), job_of("ada", "a1"), job_of("eve", "e0")]
    has = workers(settled(world_of(jobs, ADA)))
    assert (has["a0"], has["a1"]) == (2, 2)
    assert has["e0"] == 4


def test_who_waits_for_a_limit_is_told_which() -> None:
    jobs = [job_of("ada", f"a{number}", minimum=(2, 1), age=-number) for number in range(3)]
    found = decided(world_of(jobs, ADA))
    assert [found[job.id].allocation.workers for job in jobs] == [2, 2, 0]
    assert found["a2"].reason is Reason.WAITING_FOR_WORKER_LIMIT
    assert found["a2"].message == (
        "Waits: a limit leaves no room now for 2 workers and 1 server. "
        "All jobs of ada together may hold 4 workers (workers_together)."
    )


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("waited", [0.0, 8000.0])
def test_a_job_that_its_limit_never_lets_in_is_told_so_in_a_full_cluster_too_and_keeps_no_room(
    policy: str, waited: float
) -> None:
    never = job_of("ada", "a0", minimum=(5, 1), age=waited)
    other = job_of("eve", "e0", maximum=(1, 1), has=(1, 1), age=50.0)
    for jobs in ([never, other], [never], [never, other, job_of("ada", "a1", maximum=(4, 4))]):
        found = decided(world_of(jobs, WorkerLimit(4, owner="ada")), policy)
        assert found["a0"].reason is Reason.WAITING_FOR_WORKER_LIMIT
        assert "The job has 5 at least: no end of another job changes that." in found["a0"].message
    assert found["a1"].allocation.workers >= 1


def test_who_waits_behind_one_that_has_no_room_is_not_told_of_a_limit_that_nobody_fills() -> None:
    """Without the limit both of its jobs would start; with it there is room for one, and another job gets that."""
    jobs = [job_of("ada", f"a{number}", maximum=(1, 1), age=-1 - number) for number in range(2)]
    jobs[1] = replace(jobs[1], speed_samples=())  # a new job goes first, and there is room for a0, too
    other = job_of("eve", "e0", minimum=(2, 1), maximum=(2, 1), priority=1.2)
    world = replace(
        world_of([*jobs, other], WorkerLimit(1, owner="ada")), nodes=(Node("node-0", Resources(4.0, 16 * GIB)),)
    )
    found = decided(world)
    assert [found[job.id].reason for job in jobs] == [Reason.WAITING_FOR_RESOURCES] * 2
    assert found["e0"].allocation.workers == 2


@pytest.mark.parametrize("waited", [0.0, 8000.0])
def test_a_job_that_its_limit_stops_is_told_of_it_in_a_full_cluster_too(waited: float) -> None:
    """When a place gets free another job has it, also if this one has waited for longer: so its limit is why."""
    jobs = [job_of("ada", "a0", maximum=(1, 1), has=(1, 1)), job_of("ada", "a1", maximum=(1, 1), age=waited)]
    other = job_of("eve", "e0", maximum=(1, 1), has=(1, 1))
    limit = WorkerLimit(1, owner="ada")
    full = replace(world_of([*jobs, other], limit), nodes=(Node("node-0", Resources(4.0, 16 * GIB)),))
    told = "Waits: a limit leaves no room now for 1 worker and 1 server. All jobs of ada together may hold 1 worker "
    found = decided(full)["a1"]
    assert found.reason is Reason.WAITING_FOR_WORKER_LIMIT
    assert found.message == f"{told}(workers_together). Without its limit of workers, too, it would wait for room now."
    found = decided(world_of([*jobs, other], limit))["a1"]
    assert found.reason is Reason.WAITING_FOR_WORKER_LIMIT
    assert found.message == f"{told}(workers_together)."
    assert decided(replace(full, worker_limits=()))["a1"].reason is Reason.WAITING_FOR_RESOURCES


def test_a_deadline_is_told_beside_a_limit() -> None:
    jobs = [job_of("ada", "a0", maximum=(1, 1), has=(1, 1)), job_of("ada", "a1", maximum=(1, 1))]
    jobs[1] = replace(jobs[1], spec=replace(jobs[1].spec, deadline_at=NOW + 1.0))
    full = replace(world_of(jobs, WorkerLimit(1, owner="ada")), nodes=(Node("node-0", Resources(2.0, 16 * GIB)),))
    message = decided(full)["a1"].message
    assert "All jobs of ada together may hold 1 worker" in message
    assert "Its deadline at " in message


def test_a_job_that_a_limit_keeps_small_is_told_which() -> None:
    job = job_of("ada", "a0", has=(2, 2))
    found = decided(world_of([job], WorkerLimit(2, project="p")))["a0"]
    assert (found.allocation.workers, found.reason) == (2, Reason.AT_WORKER_LIMIT)
    assert found.message.startswith("Keeps 2 workers and 2 servers: a limit leaves it no more workers.")
    assert found.message.endswith("All jobs of project p together may hold 2 workers (workers_together).")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ((WorkerLimit(2, owner="ada"),), "`workers_together` of 4 for ada (now 2)"),
        ((WorkerLimit(3, project="p"),), "`workers_together` of 4 for project p (now 3)"),
        (
            (WorkerLimit(2, owner="ada"), WorkerLimit(2, project="p")),
            "`workers_together` of 4 for ada (now 2) and `workers_together` of 4 for project p (now 2)",
        ),
    ],
)
def test_the_smallest_larger_limit_that_lets_a_job_in_is_advised(limits: tuple[WorkerLimit, ...], told: str) -> None:
    jobs = [job_of("ada", f"a{number}", has=(2 - number * 2, 1 - number), minimum=(2, 1)) for number in range(2)]
    jobs.append(job_of("eve", "e0", maximum=(1, 1), project="q"))
    world = world_of(jobs, *limits, WorkerLimit(1, owner="eve"))
    found = what_gives_more(world, "a1", lambda each: plan(each, OPTIMUS)).changes
    assert told in found
    assert sum("workers_together" in words for words in found) == 1
    first = what_gives_more(world, "a0", lambda each: plan(each, OPTIMUS)).changes
    assert any("workers_together" in words for words in first), "it is kept small by the same"


def test_priority_and_then_age_decide_who_is_let_in() -> None:
    spec: dict[str, Any] = {"minimum": (4, 1)}
    jobs = [job_of("ada", "old", age=9.0, **spec), job_of("ada", "urgent", priority=2.0, **spec)]
    found = decided(world_of(jobs, ADA))
    assert (found["urgent"].allocation.workers, found["old"].allocation.workers) == (4, 0)
    found = decided(world_of([job_of("ada", "young", **spec), jobs[0]], ADA))
    assert (found["old"].allocation.workers, found["young"].allocation.workers) == (4, 0)


def test_a_limit_that_is_lowered_shrinks_jobs_and_pauses_none() -> None:
    jobs = [job_of("ada", f"a{number}", has=(4, 2), minimum=(2, 1)) for number in range(3)]
    jobs.append(job_of("ada", "waits"))
    after = workers(settled(world_of(jobs, ADA)))
    assert after == {"a0": 2, "a1": 2, "a2": 2, "waits": 0}


def test_jobs_of_an_earlier_user_of_the_name_are_not_counted() -> None:
    jobs = [job_of("ada", "before", age=5000.0, has=(4, 4)), job_of("ada", "after")]
    found = decided(world_of(jobs, replace(ADA, since=NOW - 2000.0)))
    assert found["after"].allocation.workers > 0
    assert found["before"].allocation.workers >= 4


def test_what_settles_stays() -> None:
    jobs = [job_of("ada", "a0", has=(4, 4)), job_of("ada", "a1"), job_of("eve", "e0", has=(4, 4))]
    world = settled(world_of(jobs, ADA), rounds=12)
    for _ in range(4):
        world, outcome = next_round(world, OPTIMUS)
        assert outcome.actions == ()
        world = trained(world, 60.0)


LIMITS = st.lists(
    st.builds(WorkerLimit, st.integers(1, 9), owner=st.sampled_from(["ada", "eve"]))
    | st.builds(lambda most, name: WorkerLimit(most, project=name), st.integers(1, 9), st.sampled_from(["p", "q"])),
    max_size=4,
)
JOBS = st.lists(
    st.tuples(
        st.sampled_from(["ada", "eve", "bob"]), st.sampled_from(["p", "q"]), st.integers(1, 3), st.integers(0, 5)
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@hypothesis_settings(max_examples=15, deadline=None)
@given(made=JOBS, limits=LIMITS, has_quota=st.booleans())
def test_no_limit_is_exceeded_whatever_the_policy(
    policy: str, made: list[tuple[str, str, int, int]], limits: list[WorkerLimit], has_quota: bool
) -> None:
    """Only the minima of jobs that have tasks already may be more than a limit; under policies that resize no job, what
    these have."""
    jobs = [
        job_of(
            owner,
            f"j{n}",
            project=project,
            minimum=(least, 1),
            age=n,
            has=(max(present, least), 2) if present else (0, 0),
        )
        for n, (owner, project, least, present) in enumerate(made)
    ]
    quotas = (Quota("p", share=0.5),) if has_quota else ()
    world = world_of(jobs, *limits, quotas=quotas)
    after, outcome = next_round(world, policy_named(policy))
    given_now = {decision.job_id: decision.allocation.workers for decision in outcome.decisions}
    assert given_now.keys() == {job.id for job in after.jobs}
    for limit in limits:
        mine = [job for job in jobs if limit.owner == job.owner or limit.project == job.spec.project]
        keeps = policy in ("fifo", "predictable", "tetris")
        had = sum(job.allocation.workers if keeps else job.spec.worker.minimum for job in mine if any(job.wanted_tasks))
        assert sum(given_now[job.id] for job in mine) <= max(limit.most, had), (limit, given_now)
