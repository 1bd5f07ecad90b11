"""Guarantees, borrowing and reclaim."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_job, a_snapshot, a_spec, law, samples
from tests.scheduler.constrained_worlds import gpu_node, gpu_spec, next_round, trained

from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS, allocate_with_quotas, borrows, guarantees
from optimus_scheduler.allocate.policies import POLICIES, AllocationInput, policy_named
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    Job,
    Node,
    Quota,
    Reason,
    Resources,
    SetWanted,
    Snapshot,
)
from optimus_scheduler.model.format import instant_words
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings
from optimus_scheduler.what_if import what_gives_more

OPTIMUS = policy_named("optimus")
TEN = Resources(10.0, 100 * GIB, {"v100": 9})


def cluster(cpu: float) -> tuple[Node, ...]:
    return (Node("node-0", Resources(cpu, 256 * GIB)),)


def job_of(project: str, name: str, *, has: tuple[int, int] = (0, 0), started: float = 90.0, **spec: Any) -> Job:
    whole = replace(a_spec(**spec), project=project)
    job = a_job(name, has=has, spec=whole, measured=samples(law(), ALL_SIZES))
    return job if job.allocation.is_empty else replace(job, started_at=NOW - started)


def tasks_of(world: Snapshot, project: str) -> int:
    return sum(len(job.wanted_tasks) for job in world.jobs if job.spec.project == project)


def settled(world: Snapshot, policy: str = "optimus", rounds: int = 6) -> Snapshot:
    for _ in range(rounds):
        world, _ = next_round(world, policy_named(policy))
        world = trained(world, 60.0)
    return world


# --- what is guaranteed ----------------------------------------------------------------------------------------------


def test_a_share_is_a_part_of_everything() -> None:
    assert guarantees([Quota("a", share=0.5)], TEN) == {"a": Resources(5.0, 50 * GIB, {"v100": 4})}


@pytest.mark.parametrize(
    ("size", "others", "lent"),
    [((2, 2), (0, 0), False), ((3, 3), (1, 1), True), ((3, 2), (1, 1), False), ((0, 0), (1, 1), False)],
    ids=["within its own", "what others are guaranteed", "what nobody is guaranteed", "nothing"],
)
def test_who_borrows_what_others_may_take_back(size: tuple[int, int], others: tuple[int, int], lent: bool) -> None:
    """Two projects with 4 and 3 of 8 cores."""
    world = a_snapshot([job_of("speech", "a"), job_of("vision", "b", has=others)], cluster(8.0))
    world = replace(world, quotas=(Quota("speech", cpu=4.0), Quota("vision", cpu=3.0)))
    assert borrows(world, {"a": Allocation(*size)}, "speech") is lent


@pytest.mark.parametrize(("workers", "lent"), [(1, False), (2, True)])
def test_who_borrows_gpus_of_a_type_that_the_round_chose(workers: int, lent: bool) -> None:
    job = a_job("a", spec=gpu_spec("v100", "k80", project="speech"))
    world = a_snapshot([job], (gpu_node("node-0", {"v100": 4}, cpu=64.0),))
    world = replace(world, quotas=(Quota("speech", gpus={"v100": 1}), Quota("vision", gpus={"v100": 3})))
    assert borrows(world, {"a": Allocation(workers, 1, "v100")}, "speech") is lent


def test_three_thirds_are_the_whole() -> None:
    rights = guarantees([Quota(project, share=1 / 3) for project in "abc"], TEN)
    assert [right.gpus["v100"] for right in rights.values()] == [3, 3, 3]


def test_what_is_not_named_follows_the_largest_part() -> None:
    named = guarantees([Quota("a", gpus={"v100": 3})], TEN)["a"]
    assert named.cpu == pytest.approx(10 / 3)
    assert named.gpus == {"v100": 3}
    assert guarantees([Quota("a", cpu=5.0)], TEN)["a"].gpus == {"v100": 0}


def test_a_named_amount_overrules_the_share() -> None:
    assert guarantees([Quota("a", share=0.5, gpus={"v100": 1})], TEN)["a"] == Resources(5.0, 50 * GIB, {"v100": 1})


def test_guarantees_shrink_with_the_cluster() -> None:
    rights = guarantees([Quota("a", cpu=8.0), Quota("b", cpu=4.0)], Resources(6.0, GIB))
    assert (rights["a"].cpu, rights["b"].cpu) == (4.0, 2.0)


# --- borrowing and reclaim -------------------------------------------------------------------------------------------


def test_a_job_larger_than_all_that_its_project_may_hold_is_told_so() -> None:
    """Nothing that ends lets it start; one that its project's own jobs hold up is not told so."""
    world = a_snapshot(
        [job_of("a", "large", minimum=(2, 1)), job_of("a", "a", has=(1, 1)), job_of("a", "b")], cluster(8)
    )
    world = replace(world, quotas=(Quota("a", cpu=2.0, may_borrow=False),))
    told = {each.job_id: each.message for each in plan(world, OPTIMUS).decisions}
    assert [job_id for job_id, words in told.items() if NO_END_HELPS in words] == ["large"]


def the_message(world: Snapshot, job_id: str) -> str:
    return next(each.message for each in plan(world, OPTIMUS).decisions if each.job_id == job_id)


BEYOND = "That is more than its project may hold: it may not borrow, and"
SHRINKS = "because the quotas of all projects together exceed what the open nodes have"


@pytest.mark.parametrize(
    ("quotas", "told"),
    [
        pytest.param(
            (Quota("a", cpu=1.0, may_borrow=False), Quota("b", cpu=6.0)),
            f"{BEYOND} its quota of 1 core comes to 0.57 cores now, {SHRINKS}; {NO_END_HELPS}.",
            id="shrunk by others",
        ),
        pytest.param(
            (Quota("a", cpu=0.5, may_borrow=False),),
            f"{BEYOND} its quota is 0.5 cores; {NO_END_HELPS}.",
            id="too small",
        ),
        pytest.param(
            (Quota("a", memory_bytes=GIB, may_borrow=False),),
            f"{BEYOND} its quota of 1 GiB comes to 0.01 cores now; {NO_END_HELPS}.",
            id="of what it does not name",
        ),
        pytest.param(
            (Quota("a", share=0.25, may_borrow=False), Quota("b", cpu=6.0, memory_bytes=GIB)),
            f"{BEYOND} its quota of 25 % of the cluster comes to 0.57 cores now, {SHRINKS}; {NO_END_HELPS}.",
            id="a share",
        ),
    ],
)
def test_what_a_quota_comes_to_is_told_of_a_job_that_it_leaves_no_room(quotas: tuple[Quota, ...], told: str) -> None:
    waits = job_of("a", "waits", minimum=(1, 0), maximum=(1, 0))
    world = replace(a_snapshot([waits], cluster(4)), quotas=quotas)
    assert the_message(world, "waits") == f"Waits: quotas leave no room now for 1 worker of project a. {told}"


def test_a_job_that_waits_for_one_of_its_own_project_is_told_so() -> None:
    size: dict[str, Any] = {"minimum": (1, 0), "maximum": (1, 0)}
    jobs = [job_of("a", "trains", has=(1, 0), **size), job_of("a", "waits", **size)]
    world = replace(a_snapshot(jobs, cluster(4)), quotas=(Quota("a", cpu=1.0, may_borrow=False),))
    used_up = "Its project may not borrow, and its other jobs leave too little for it: its quota is 1 core."
    assert the_message(world, "waits") == f"Waits: quotas leave no room now for 1 worker of project a. {used_up}"
    shrunk = replace(world, quotas=(Quota("a", cpu=2.0, may_borrow=False), Quota("b", cpu=4.0)))
    assert f"its quota of 2 cores comes to 1.33 cores now, {SHRINKS}." in the_message(shrunk, "waits")


def test_a_job_that_waits_for_the_right_of_others_is_told_what_its_own_quota_comes_to() -> None:
    size: dict[str, Any] = {"minimum": (1, 0), "maximum": (1, 0)}
    jobs = [job_of("b", f"b{i}", has=(1, 0), **size) for i in range(3)]
    jobs += [job_of("a", f"a{i}", has=(1, 0), started=90.0 - i, **size) for i in range(2)]
    world = a_snapshot([*jobs, job_of("b", "b9", **size)], cluster(5))
    world = replace(world, quotas=(Quota("a", cpu=2.0), Quota("b", cpu=9.0)))
    assert the_message(world, "a1") == (
        "Paused: quotas leave no room now for 1 worker of project a. Quotas of other projects give them a right to the "
        f"room. Its project's quota of 2 cores comes to 0.9 cores now, {SHRINKS}."
    )


def test_a_job_that_its_projects_quota_would_hold_is_told_that_others_shrink_it() -> None:
    size: dict[str, Any] = {"minimum": (3, 0), "maximum": (3, 0)}
    world = a_snapshot([job_of("b", "b0", has=(3, 0), **size), job_of("a", "waits", **size)], cluster(4))
    shrunk = replace(world, quotas=(Quota("a", cpu=3.0), Quota("b", cpu=6.0)))
    why = f"Its project's quota of 3 cores comes to 1.33 cores now, {SHRINKS}."
    assert the_message(shrunk, "waits").endswith(f"beside jobs that train or go first. {why}")
    whole = replace(world, quotas=(Quota("a", cpu=1.0), Quota("b", cpu=3.0)))
    assert the_message(whole, "waits").endswith("beside jobs that train or go first.")
    own = job_of("a", "a0", has=(3, 0), **size)
    holds_it = replace(a_snapshot([own, shrunk.jobs[1]], cluster(4)), quotas=shrunk.quotas)
    assert the_message(holds_it, "waits").endswith("beside jobs that train or go first."), "its own project holds it"


def test_a_job_at_a_quota_that_others_shrink_is_told_so() -> None:
    job = job_of("a", "a", minimum=(1, 1), maximum=(4, 4))
    world = replace(a_snapshot([job], cluster(4)), quotas=(Quota("a", cpu=4.0, may_borrow=False), Quota("b", cpu=4.0)))
    told = the_message(settled(world), "a")
    assert "would be more than project a may have." in told
    assert told.endswith(f"Its project's quota of 4 cores comes to 2 cores now, {SHRINKS}.")


@pytest.mark.parametrize("may_borrow", [False, True])
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("cordoned", "Gets all that its owner allows: {size}."),
        ("not started", "Waits: no node that may be used can host {size}, even when it is empty. {closed}"),
        ("drained", "Paused: no node that may be used can host {size}, even when it is empty. {closed}"),
        ("gone", "Paused: no node that may be used can host {size}, even when it is empty."),
    ],
)
def test_the_only_node_is_closed_beside_quotas(how: str, told: str, may_borrow: bool) -> None:
    """What runs there stays, whatever the quotas come to; what has to leave it, or never began, waits for the node."""
    sizes = {"a": (3, 0), "b": (1, 0)}
    jobs = [job_of(name, name, has=size, minimum=size, maximum=size) for name, size in sizes.items()]
    world = a_snapshot(jobs, cluster(8))
    quotas = tuple(Quota(project, cpu=4.0, may_borrow=may_borrow) for project in "ab")
    shut = tuple(replace(node, schedulable=False, emptied=how == "drained") for node in world.nodes)
    world = replace(world, quotas=quotas, nodes=() if how == "gone" else shut)
    if how == "not started":
        world = replace(world, tasks=(), jobs=tuple(replace(job, started_at=None) for job in jobs))
    closed = "Closed or lost: node-0."
    assert [the_message(world, job_id) for job_id in "ab"] == [
        told.format(size=size, closed=closed) for size in ("3 workers", "1 worker")
    ]


def test_a_worker_that_was_granted_and_not_started_before_the_node_was_closed_is_not_told_of_a_quota() -> None:
    job = job_of("a", "a", has=(2, 0), minimum=(1, 0), maximum=(2, 0))
    whole = a_snapshot([job], tuple(replace(node, schedulable=False) for node in cluster(8)))
    first = tuple(task for task in whole.tasks if task.key.rank == 0)
    world = replace(whole, tasks=first, quotas=(Quota("a", share=0.5, may_borrow=False),))
    told = "Shrinks from 2 workers to 1 worker: no node has room for the tasks of 2 workers. Closed or lost: node-0."
    assert the_message(world, "a") == told


def advice(world: Snapshot, job_id: str, *, only_named: bool = False) -> tuple[str, ...]:
    return what_gives_more(world, job_id, partial(plan, policy=OPTIMUS), only_named=only_named).changes


def test_no_larger_share_is_advised_where_an_amount_does() -> None:
    """The cluster's memory is half unused: of what a project has only the cores are too few."""
    size: dict[str, Any] = {"minimum": (1, 0), "maximum": (1, 0)}
    both = Quota("a", share=0.5, cpu=1.0, may_borrow=False)
    waits = replace(a_snapshot([job_of("a", "first", has=(1, 0), **size), job_of("a", "waits", **size)], cluster(2)))
    told = advice(replace(waits, quotas=(both,)), "waits")
    assert "a quota of project a of 50 % of the cluster, but 2 cores (now 50 % of the cluster, but 1 core)" in told


def test_the_quota_that_a_job_needs_is_told_though_there_is_no_room_for_it_yet() -> None:
    small: dict[str, Any] = {"minimum": (1, 0), "maximum": (1, 0)}
    jobs = [job_of("a", "one", has=(1, 0), **small), job_of("a", "two", has=(1, 0), **small)]
    jobs.append(job_of("a", "waits", minimum=(1, 1), maximum=(1, 1)))
    told = advice(replace(a_snapshot(jobs, cluster(2)), quotas=(Quota("a", cpu=1.0, may_borrow=False),)), "waits")
    assert told == (
        "leave to borrow for project a, once other jobs have ended",
        "a quota of project a of 2 cores (now 1 core), once other jobs have ended",
    )


def test_no_quota_above_what_the_cluster_has_is_advised_where_anything_else_helps() -> None:
    size: dict[str, Any] = {"minimum": (1, 0), "maximum": (1, 0)}
    idle = replace(
        a_snapshot([job_of("a", "waits", **size)], cluster(4)),
        quotas=(Quota("a", cpu=1.0, may_borrow=False), Quota("b", cpu=6.0)),
    )
    assert "a quota of project a of 2 cores (now 1 core)" in advice(idle, "waits")
    full = replace(
        a_snapshot([job_of("a", "waits", **size), job_of("b", "b0", has=(4, 0), minimum=(4, 0))], cluster(4)),
        quotas=(Quota("a", cpu=1.0, may_borrow=False), Quota("b", cpu=30.0)),
    )
    assert not [each for each in advice(full, "waits") if "more than the open nodes have" in each], "others' do"
    beyond = "which is more than the open nodes have and comes to 1 core beside the quotas of others"
    of_others = advice(full, "waits", only_named=True)
    assert of_others == (f"a quota of project a of 10 cores (now 1 core), {beyond}",)


def test_a_deadline_does_not_hide_that_no_end_helps() -> None:
    job = job_of("a", "due", rule=ConvergenceRule(max_steps=100))
    job = replace(job, spec=replace(job.spec, deadline_at=NOW + 10_000.0))
    world = replace(a_snapshot([job], cluster(8)), quotas=(Quota("a", cpu=0.0, may_borrow=False),))
    (told,) = plan(world, OPTIMUS).decisions
    assert told.reason is Reason.WAITING_FOR_QUOTA
    assert told.message.endswith(f"{NO_END_HELPS}.")


def test_idle_quota_is_borrowed() -> None:
    world = a_snapshot([job_of("b", "b0"), job_of("b", "b1")], cluster(16))
    world = replace(world, quotas=(Quota("a", share=0.5),))
    assert tasks_of(settled(world), "b") > 8


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_owner_gets_its_quota_back(policy: str) -> None:
    """Two borrowers hold everything; the owner's two jobs come, and can use all of its half."""
    borrowers = [job_of("b", f"b{i}", has=(4, 4), minimum=(2, 2), maximum=(4, 4)) for i in (0, 1)]
    owners = [job_of("a", f"a{i}", minimum=(2, 2), maximum=(4, 4)) for i in (0, 1)]
    world = replace(a_snapshot([*borrowers, *owners], cluster(16)), quotas=(Quota("a", share=0.5),))
    # Under `predictable` the second job waits for a size that is worth its tasks, where the first leaves too little.
    assert tasks_of(settled(world, policy), "a") >= (6 if policy == "predictable" else 8)


def test_borrowers_shrink_before_anybody_is_paused() -> None:
    borrowers = [job_of("b", f"b{i}", has=(4, 4)) for i in (0, 1)]
    world = replace(
        a_snapshot([*borrowers, job_of("a", "a", maximum=(4, 4))], cluster(16)), quotas=(Quota("a", share=0.5),)
    )
    after = settled(world)
    assert tasks_of(after, "a") == 8
    assert all(not job.allocation.is_empty for job in after.jobs)


def test_the_job_that_started_last_is_paused_first() -> None:
    spec: dict[str, Any] = {"minimum": (2, 2), "maximum": (2, 2)}
    borrowers = [job_of("b", f"b{i}", has=(2, 2), started=100.0 + i, **spec) for i in (0, 1)]
    urgent = job_of("b", "b-urgent", has=(2, 2), started=50.0, priority=2.0, **spec)
    owner = job_of("a", "a", **spec)
    world = replace(a_snapshot([*borrowers, urgent, owner], cluster(12)), quotas=(Quota("a", share=0.34),))
    after, outcome = next_round(world, OPTIMUS)
    sizes = {job.id: len(job.wanted_tasks) for job in after.jobs}
    assert sizes == {"a": 4, "b-urgent": 4, "b1": 4, "b0": 0}
    paused = next(decision for decision in outcome.decisions if decision.job_id == "b0")
    assert paused.reason is Reason.WAITING_FOR_QUOTA
    told = "Paused: quotas leave no room now for 2 workers and 2 servers of project b."
    assert paused.message == f"{told} Quotas of other projects give them a right to the room."
    (wanted,) = (each for each in outcome.actions if isinstance(each, SetWanted) and each.job_id == "b0")
    assert wanted.paused_by == "quotas"
    later = [replace(each, paused_by=wanted.paused_by) if each.id == "b0" else each for each in after.jobs]
    (waits,) = (each for each in plan(replace(after, jobs=tuple(later)), OPTIMUS).decisions if each.job_id == "b0")
    at = instant_words(NOW)
    assert waits.message.startswith(f"Paused at {at} by quotas. Now there is no room for 2 workers and 2 servers ")
    young = [replace(each, started_at=None) if each.id == "b0" else each for each in later]
    (waits,) = (each for each in plan(replace(after, jobs=tuple(young)), OPTIMUS).decisions if each.job_id == "b0")
    assert waits.message.startswith(f"Its tasks were taken at {at} by quotas, before it began. Now there is no ")

    lossy = [replace(job, unsaved_seconds=60.0) if job.id == "b0" else job for job in world.jobs]
    after, _ = next_round(replace(world, jobs=tuple(lossy)), OPTIMUS)
    sizes = {job.id: len(job.wanted_tasks) for job in after.jobs}
    assert sizes == {"a": 4, "b-urgent": 4, "b1": 0, "b0": 4}, "a pause would cost it what it has trained"


@pytest.mark.parametrize(("cores", "reason"), [(2.0, Reason.CLUSTER_FULL), (64.0, Reason.AT_QUOTA)])
def test_a_quota_is_named_only_where_the_cluster_could_hold_more(cores: float, reason: Reason) -> None:
    has = replace(job_of("a", "a", has=(1, 1)), started_at=NOW - 900.0, allocated_at=NOW - 900.0)
    world = replace(a_snapshot([has], cluster(cores)), quotas=(Quota("a", cpu=2.0, may_borrow=False),))
    _, outcome = next_round(world, OPTIMUS)
    decision = outcome.decisions[0]
    assert (decision.allocation, decision.reason) == (Allocation(1, 1), reason), decision.message


def test_who_is_paused_for_a_guarantee_is_not_told_of_a_job_that_gets_what_is_left() -> None:
    """The owner takes back half of what the larger job has; the smaller one of its own project fits in the rest."""
    large = job_of("b", "large", has=(1, 1), minimum=(1, 1), maximum=(1, 1))
    script: dict[str, Any] = {"minimum": (1, 0), "maximum": (1, 0)}
    small, owner = job_of("b", "small", **script), job_of("a", "owner", **script)
    small, owner = (
        replace(each, spec=replace(each.spec, architecture=Architecture.SCRIPT), speed_samples=())
        for each in (small, owner)
    )
    world = replace(a_snapshot([large, small, owner], cluster(2)), quotas=(Quota("a", share=0.5, may_borrow=False),))
    _, outcome = next_round(world, OPTIMUS)
    assert {each.job_id: each.allocation.workers for each in outcome.decisions} == {"large": 0, "owner": 1, "small": 1}
    (wanted,) = (each for each in outcome.actions if isinstance(each, SetWanted) and each.job_id == "large")
    assert wanted.paused_by == "quotas"


def test_who_is_pushed_out_by_a_deadline_of_its_own_project_is_told_of_that_job() -> None:
    """No quota has changed, and no other project asks for anything."""
    size: dict[str, Any] = {"minimum": (1, 1), "maximum": (1, 1)}
    old = job_of("a", "old", has=(1, 1), rule=ConvergenceRule(max_steps=100_000), **size)
    new = job_of("a", "new", rule=ConvergenceRule(max_steps=100), **size)
    new = replace(new, spec=replace(new.spec, deadline_at=NOW + 1.2 * 100 / law()(1, 1)), submitted_at=NOW)
    world = replace(a_snapshot([old, new], cluster(8)), quotas=(Quota("a", cpu=2.0, may_borrow=False),))
    outcome = plan(world, policy_named("fifo"))
    (paused,) = (each for each in outcome.decisions if each.job_id == "old")
    assert (paused.allocation.is_empty, paused.reason) == (True, Reason.WAITING_FOR_QUOTA)
    (wanted,) = (each for each in outcome.actions if isinstance(each, SetWanted) and each.job_id == "old")
    assert wanted.paused_by == "job new, which has a deadline"
    assert paused.message.startswith("Paused by job new, which has a deadline: quotas leave no room now for 1 worker")


@pytest.mark.parametrize("may_borrow", [False, True])
def test_a_job_whose_project_uses_its_quota_better_is_told_by_which_job(may_borrow: bool) -> None:
    """The quota has room for both at their least sizes: that it leaves none would be false."""
    short = job_of("a", "short", has=(2, 1), minimum=(1, 1), maximum=(2, 2), rule=ConvergenceRule(max_steps=100))
    waits = job_of("a", "waits", minimum=(1, 1), rule=ConvergenceRule(max_steps=100_000))
    held = job_of("b", "held", has=(2, 2), minimum=(2, 2), maximum=(2, 2))
    quotas = (Quota("a", cpu=4.0, may_borrow=may_borrow), Quota("b", cpu=4.0))
    outcome = plan(replace(a_snapshot([short, waits, held], cluster(8)), quotas=quotas), policy_named("optimus"))
    told = {each.job_id: each for each in outcome.decisions}
    assert told["short"].allocation == Allocation(2, 2)
    assert told["waits"].allocation.is_empty
    use = "better use of the room{} that 1 worker and 1 server would need."
    if may_borrow:
        assert told["waits"].message == f"Waits: other jobs make {use.format('')}"
    else:
        assert told["waits"].message == f"Waits: job short of project a makes {use.format(' in its quota')}"


def test_nobody_is_paused_for_more_than_the_guarantee() -> None:
    """The owner has its half and wants more: what others run goes on."""
    spec: dict[str, Any] = {"minimum": (2, 2), "maximum": (2, 2)}
    jobs = [job_of("a", f"a{i}", has=(2, 2), **spec) for i in (0, 1)]
    jobs += [job_of("b", f"b{i}", has=(2, 2), **spec) for i in (0, 1)]
    world = replace(a_snapshot([*jobs, job_of("a", "a9", **spec)], cluster(16)), quotas=(Quota("a", share=0.5),))
    after, outcome = next_round(world, OPTIMUS)
    assert tasks_of(after, "b") == 8
    assert outcome.decisions[2].reason is Reason.WAITING_FOR_RESOURCES


def test_reclaiming_ends() -> None:
    """Once the owner has its part, nothing changes any more."""
    jobs = [job_of("b", f"b{i}", has=(4, 4), minimum=(2, 2)) for i in (0, 1)] + [job_of("a", "a", minimum=(2, 2))]
    world = settled(replace(a_snapshot(jobs, cluster(16)), quotas=(Quota("a", share=0.5),)), rounds=12)
    sizes = {job.id: job.allocation for job in world.jobs}
    for _ in range(5):
        world, outcome = next_round(world, OPTIMUS)
        assert outcome.actions == ()
        world = trained(world, 60.0)
    assert {job.id: job.allocation for job in world.jobs} == sizes


def test_a_project_that_may_not_borrow_waits_beside_idle_room() -> None:
    quotas = (Quota("a", cpu=2.0, may_borrow=False),)
    world = replace(a_snapshot([job_of("a", "a0"), job_of("a", "a1")], cluster(16)), quotas=quotas)
    outcome = plan(world, OPTIMUS)
    assert sorted(decision.allocation.is_empty for decision in outcome.decisions) == [False, True]
    assert Reason.WAITING_FOR_QUOTA in [decision.reason for decision in outcome.decisions]
    assert tasks_of(settled(world), "a") == 2


def test_a_job_that_is_paused_for_a_project_that_may_not_borrow_says_so() -> None:
    spec: dict[str, Any] = {"minimum": (1, 1), "maximum": (1, 1)}
    jobs = [job_of("b", f"b{i}", has=(1, 1), **spec) for i in (0, 1)]
    world = replace(
        a_snapshot([*jobs, job_of("a", "a0", **spec)], cluster(4)), quotas=(Quota("a", cpu=2.0, may_borrow=False),)
    )
    held_back = [each for each in plan(world, OPTIMUS).decisions if each.reason is Reason.WAITING_FOR_QUOTA]
    assert [each.job_id for each in held_back] in (["b0"], ["b1"])
    assert held_back[0].message.endswith("of project b. Quotas of other projects give them a right to the room.")
    large = job_of("b", "b9", minimum=(2, 2), maximum=(2, 2))
    outcome = plan(replace(world, jobs=(*world.jobs, large)), OPTIMUS)
    assert {one.job_id: one.reason for one in outcome.decisions}["b9"] is Reason.WAITING_FOR_RESOURCES, (
        "without it, too"
    )


@pytest.mark.parametrize("confined", [False, True])
def test_a_job_that_is_paused_for_a_quota_says_so_where_another_job_has_what_that_left_of_its_room(
    confined: bool,
) -> None:
    trains = job_of("b", "b0", has=(1, 1), minimum=(1, 1), maximum=(1, 1))
    small: dict[str, Any] = {"minimum": (1, 0), "maximum": (1, 0)}
    waits, new = job_of("b", "small", **small), job_of("a", "a0", **small)
    quotas = (Quota("a", cpu=1.0, may_borrow=False),) if confined else ()
    outcome = plan(replace(a_snapshot([trains, waits, new], cluster(2)), quotas=quotas), OPTIMUS)
    found = {one.job_id: one for one in outcome.decisions}
    if confined:
        assert not found["a0"].allocation.is_empty
        assert not found["small"].allocation.is_empty
        assert found["b0"].reason is Reason.WAITING_FOR_QUOTA
        assert "quotas leave no room" in found["b0"].message
    else:
        assert not found["b0"].allocation.is_empty


@pytest.mark.parametrize(("most", "told"), [(1, Reason.WAITING_FOR_RESOURCES), (2, Reason.WAITING_FOR_QUOTA)])
def test_a_quota_is_not_why_a_job_waits_beside_jobs_that_hold_their_minima(most: int, told: Reason) -> None:
    """Without the quota of the other project, too, there would be no room for it."""
    least: dict[str, Any] = {"minimum": (1, 1), "maximum": (1, 1)}
    held = job_of("a", "a0", has=(most, most), minimum=(1, 1), maximum=(most, most))
    jobs = [held, job_of("b", "b0", has=(1, 1), **least), job_of("b", "waits", **least)]
    world = replace(a_snapshot(jobs, cluster(2 + 2 * most)), quotas=(Quota("a", cpu=2.0 * most, may_borrow=False),))
    reasons = {decision.job_id: decision.reason for decision in plan(world, OPTIMUS).decisions}
    assert reasons["waits"] is told


def ending(left: float, made: float, project: str = "other", name: str = "old") -> Job:
    """A script that trains, without checkpoints."""
    steps = max(1, round(left * law()(1, 1)))
    old = job_of(project, name, has=(1, 1), maximum=(1, 1), rule=ConvergenceRule(max_steps=steps))
    return replace(old, unsaved_seconds=made)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    ("left", "made", "is_kept"), [(10.0, 100.0, True), (10.0, 0.0, False), (10.0, 4.0, False), (60.0, 9e3, False)]
)
def test_a_guarantee_waits_for_a_script_whose_end_is_near(policy: str, left: float, made: float, is_kept: bool) -> None:
    waits = job_of("owner", "new", minimum=(2, 2), maximum=(2, 2))
    world = replace(a_snapshot((ending(left, made), waits), cluster(4.0)), quotas=(Quota("owner", share=1.0),))
    decided = {each.job_id: each for each in plan(world, policy_named(policy)).decisions}
    assert [not decided[job_id].allocation.is_empty for job_id in ("old", "new")] == [is_kept, not is_kept]
    assert ("guarantees of projects wait for it" in decided["old"].message) == is_kept
    later = replace(world, jobs=(waits,), tasks=())
    assert not plan(later, policy_named(policy)).decisions[0].allocation.is_empty


# --- whatever the jobs, the quotas and the policy --------------------------------------------------------------------


@st.composite
def _contests(draw: st.DrawFn) -> tuple[tuple[Job, ...], tuple[Quota, ...], Resources]:
    """Jobs of three projects, some running, on a cluster that may be too small for them."""
    cores = draw(st.integers(4, 24))
    jobs, left = [], cores
    for number in range(draw(st.integers(1, 7))):
        minimum = draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
        runs = sum(minimum) <= left and draw(st.booleans())
        left -= sum(minimum) if runs else 0
        most = (minimum[0] + draw(st.integers(0, 4)), minimum[1] + draw(st.integers(0, 4)))
        project = draw(st.sampled_from("abc"))
        jobs.append(job_of(project, f"j{number}", has=minimum if runs else (0, 0), minimum=minimum, maximum=most))
    shares = draw(st.sampled_from([(0.5,), (0.25, 0.5), (1 / 3, 1 / 3, 1 / 3)]))
    quotas = tuple(
        Quota(project, share=share, may_borrow=draw(st.booleans()))
        for project, share in zip("abc", shares, strict=False)
    )
    return tuple(jobs), quotas, Resources(float(cores), 256 * GIB)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@hypothesis_settings(max_examples=25, deadline=None)
@given(world=_contests())
def test_guarantees_are_kept_and_nothing_is_given_twice(
    policy: str, world: tuple[tuple[Job, ...], tuple[Quota, ...], Resources]
) -> None:
    """Every project has as much as the policy would give it on its guarantee; who may not borrow has no more."""
    jobs, quotas, capacity = world
    outlooks = forecast_all(jobs, NOW, Settings())
    chosen = policy_named(policy)
    grants = allocate_with_quotas(AllocationInput(outlooks, capacity), chosen, Settings(), now=NOW, quotas=quotas)
    assert set(grants) == {job.id for job in jobs}

    def held(project: str | None) -> Resources:
        mine = (one for one in outlooks if project in (None, one.job.spec.project))
        return sum((one.demand(grants[one.id].allocation) for one in mine), Resources())

    assert held(None).fits_in(capacity)
    for quota, right in ((quota, guarantees(quotas, capacity)[quota.project]) for quota in quotas):
        own = tuple(one for one in outlooks if one.job.spec.project == quota.project)
        alone = chosen.allocate(AllocationInput(own, right), Settings()) if own else {}
        due = sum((one.demand(alone[one.id].allocation) for one in own), Resources())
        assert held(quota.project).dominant_share(capacity) >= due.dominant_share(capacity) - 1e-9
        assert quota.may_borrow or held(quota.project).fits_in(right)
    for one in outlooks:
        size = grants[one.id].allocation
        assert size.is_empty or (size.workers >= one.minimum.workers and size.servers >= one.minimum.servers)


def test_a_deadline_that_another_projects_guarantee_stands_against_is_told_so() -> None:
    """Its claim is not met, in part neither: the owner has to know that, and why."""
    guaranteed = job_of("half", "a", has=(1, 1))
    hurried = job_of("other", "b", has=(1, 1), maximum=(2, 1), rule=ConvergenceRule(max_steps=100))
    needs = law()(1, 1)
    hurried = replace(hurried, spec=replace(hurried.spec, deadline_at=NOW + 0.9 * 100 / needs))
    world = a_snapshot((guaranteed, hurried), cluster(4.0))
    told = []
    for quotas in ((), (Quota("half", share=0.5),)):
        outcome = plan(replace(world, quotas=quotas), OPTIMUS, Settings())
        told += [each for each in outcome.decisions if each.job_id == "b"]
    free, held = told
    assert (free.allocation.workers, held.allocation.workers) == (2, 1)
    assert (
        "cannot be had now, beside what comes first: other deadlines, guarantees of projects, or jobs " in held.message
    )
    assert "cannot be had" not in free.message
    calm = replace(hurried, spec=replace(hurried.spec, deadline_at=NOW + 1e5))
    outcome = plan(a_snapshot((guaranteed, calm), cluster(4.0)), OPTIMUS, Settings())
    words = next(each.message for each in outcome.decisions if each.job_id == "b")
    assert "it needs 1 worker and 1 server." in words, "with less it cannot run"


@pytest.mark.parametrize("policy", sorted(POLICIES))
@hypothesis_settings(max_examples=25, deadline=None)
@given(
    world=_contests(),
    # What would be rounded to 0 below is another world.
    left=st.lists(
        st.tuples(st.floats(1.0, 60.0), st.floats(0.0, 100.0, allow_subnormal=False)), min_size=1, max_size=2
    ),
)
def test_only_near_ends_delay_a_guarantee_and_cost_nobody_a_pause(
    policy: str,
    world: tuple[tuple[Job, ...], tuple[Quota, ...], Resources],
    left: list[tuple[float, float]],
) -> None:
    jobs, quotas, capacity = world
    capacity = Resources(capacity.cpu + 2.0 * len(left), capacity.memory_bytes)
    scripts = tuple(ending(seconds, made, name=f"s{number}") for number, (seconds, made) in enumerate(left))
    settings = Settings()

    def granted(of: tuple[Job, ...]) -> dict[str, Allocation]:
        inputs = AllocationInput(forecast_all(of, NOW, settings), capacity)
        found = allocate_with_quotas(inputs, policy_named(policy), settings, now=NOW, quotas=quotas)
        return {job_id: grant.allocation for job_id, grant in found.items()}

    given = granted((*jobs, *scripts))
    # So little to lose that no end is near, in the order in which they are paused.
    without = granted((*jobs, *(replace(one, unsaved_seconds=1e-9 * one.unsaved_seconds) for one in scripts)))
    outlooks = {one.id: one for one in forecast_all((*jobs, *scripts), NOW, settings)}
    assert sum((outlooks[job_id].demand(size) for job_id, size in given.items()), Resources()).fits_in(capacity)
    near = [
        one
        for one in scripts
        if outlooks[one.id].remaining_seconds(one.allocation) < min(one.unsaved_seconds, settings.drain_seconds)
    ]
    assert near or given == without, "the guarantee is reached when these have ended"
    for job in jobs:
        least = min(job.allocation.workers, without[job.id].workers)
        assert given[job.id].workers >= least, "nobody loses what it has to the wait"


def test_of_jobs_that_have_just_changed_quotas_pause_the_lowest_priority_first() -> None:
    """Beside what two projects are guaranteed there is room for one job of two workers, or for two of one."""
    urgent = job_of("default", "urgent", has=(3, 1), minimum=(2, 1), maximum=(8, 1), priority=2.0)
    others = [job_of("default", name, has=(1, 1), maximum=(8, 1)) for name in ("other-1", "other-2")]
    jobs = [replace(urgent, allocated_at=NOW - 10), *others, job_of("vision", "v1"), job_of("text", "t1")]
    quotas = (Quota("vision", cpu=2.0, may_borrow=False), Quota("text", share=0.25))
    decisions = plan(replace(a_snapshot(jobs, cluster(8.0)), quotas=quotas), OPTIMUS).decisions
    assert {each.job_id for each in decisions if not each.allocation.is_empty} == {"urgent", "v1", "t1"}
