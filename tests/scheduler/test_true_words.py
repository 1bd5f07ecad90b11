"""What a job's owner is told is true: every sentence is checked against the plan that it explains, over random worlds.

And what is said to give a job more does so: it is done, and the round is planned again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count as numbers
from itertools import takewhile

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, NOW, a_cluster, a_job, a_snapshot, a_spec, law, samples
from tests.scheduler.constrained_worlds import PRICES, next_round, trained, worlds

from optimus_scheduler.allocate.allocate_with_quotas import guarantee_alone, guarantees
from optimus_scheduler.allocate.deadline_budget import leaves_deadline_in_doubt
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.allocate.staying import CurrentSlots, room_of
from optimus_scheduler.forecast.ends_teach import taught_by_ends
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    Decision,
    Directive,
    Job,
    Node,
    Plan,
    Quota,
    Reason,
    Resources,
    Role,
    Snapshot,
    WorkerLimit,
)
from optimus_scheduler.model.format import instant_words
from optimus_scheduler.retries import Retry
from optimus_scheduler.round import plan
from optimus_scheduler.what_if import (
    Advice,
    Behind,
    Change,
    ToldOfEnds,
    WithOneEnd,
    kept_on_larger_cluster,
    what_gives_more,
)

OPTIMUS = policy_named("optimus")
HAIR = 1e-6


@dataclass(frozen=True)
class Seen:
    """A plan, and the world that it was made for."""

    world: Snapshot
    decisions: Mapping[str, Decision]

    def job(self, job_id: str) -> Job:
        return next(job for job in self.world.jobs if job.id == job_id)

    def demand(self, job: Job, size: Allocation) -> Resources:
        spec = job.spec.on(size.gpu_type)
        return spec.worker.resources * size.workers + spec.server.resources * size.servers

    def least(self, job: Job, gpu_type: str | None) -> Resources:
        return self.demand(job, Allocation(job.spec.worker.minimum, job.spec.server.minimum, gpu_type))

    def held_by_others(self, job: Job) -> Resources:
        """What the plan gives to all other jobs, or keeps for them."""
        sizes = {each.job_id: each.allocation for each in self.decisions.values() if each.job_id != job.id}
        held = (self.demand(self.job(job_id), size) for job_id, size in sizes.items())
        return sum(held, self.kept_for_others(job))

    def kept_for_others(self, job: Job, project: str | None = None) -> Resources:
        """The minima of those that have waited so long that nobody passes them; of `project` only, if given."""
        waiting = [self.job(each.job_id) for each in self.decisions.values() if each.allocation.is_empty]
        late = [each for each in waiting if each.submitted_at < self.world.now - PRICES.patience_seconds]
        late = [each for each in late if each.id != job.id and project in (None, each.spec.project)]
        return sum((self.least(each, None) for each in late), Resources())

    def minima_of_others(self, job: Job) -> Resources:
        """... and of that, what they keep at least: all that they have where they are being finished."""
        having = [each for each in self.decisions.values() if each.job_id != job.id and not each.allocation.is_empty]
        kept = (
            self.demand(self.job(each.job_id), each.allocation)
            if each.reason in (Reason.CONVERGED, Reason.LIMIT_REACHED)
            else self.least(self.job(each.job_id), each.allocation.gpu_type)
            for each in having
        )
        return sum(kept, self.kept_for_others(job))

    def fits(self, *amounts: Resources) -> bool:
        return sum(amounts, Resources()).fits_in(_a_hair_more(room_of(self.world).capacity))


def _a_hair_more(capacity: Resources) -> Resources:
    return replace(capacity, cpu=capacity.cpu + HAIR)


def sizes_in(message: str) -> list[tuple[int, int]]:
    """All sizes that a sentence names, in its order."""
    found = re.findall(r"(\d+) workers?(?: and (\d+) servers?)?", message)
    return [(int(workers), int(servers or 0)) for workers, servers in found]


def pair(size: Allocation) -> tuple[int, int]:
    return size.workers, size.servers


def check(seen: Seen, decision: Decision) -> None:
    """The sentence and the code of one decision."""
    job, size, before, told = seen.job(decision.job_id), decision.allocation, decision.previous, decision.message
    check_verb(decision, has_trained=job.started_at is not None)
    check_what_quotas_come_to(seen, job, told)
    wanted = sizes_in(told.partition(".")[0])[-1:] if told.startswith("Keeps") else [pair(before)]
    asked = seen.demand(job, Allocation(*wanted[0], size.gpu_type or before.gpu_type)) if wanted else Resources()
    match decision.reason:
        case Reason.AT_MAXIMUM:
            most = job.spec.worker.maximum, job.spec.server.maximum
            cut = tuple(map(min, pair(before), most))
            assert pair(size) == (cut if "its owner allows no more than" in told else most)
        case Reason.CLUSTER_FULL:
            assert not seen.fits(asked), "it would not fit even alone"
        case Reason.MINIMUM_ELSEWHERE:
            assert not seen.fits(seen.held_by_others(job), asked)
            if not seen.world.quotas and all(each.spec.deadline_at is None for each in seen.world.jobs):
                assert not seen.fits(seen.minima_of_others(job), asked)
        case Reason.BETTER_USED_ELSEWHERE:
            assert not (fits_quota(seen, job, asked) and seen.fits(seen.held_by_others(job), asked)), "there is room"
            rivals = [each for each in seen.decisions.values() if each.job_id != job.id and each.gain is not None]
            next_gain = -math.inf if decision.next_gain is None else decision.next_gain
            assert told.startswith("Shrinks") or any(
                each.gain >= next_gain * (1 - 1e-9) for each in rivals if each.gain is not None
            )
        case Reason.AT_QUOTA | Reason.WAITING_FOR_QUOTA:
            check_quota(seen, job, asked if decision.reason is Reason.AT_QUOTA else seen.least(job, None))
        case Reason.AT_WORKER_LIMIT | Reason.WAITING_FOR_WORKER_LIMIT:
            check_worker_limit(seen, job, decision)
        case Reason.WAITING_FOR_RESOURCES:
            assert size.is_empty
            assert not fits_beside(seen, job) or any(waits_longer(each, job) for each in seen.world.jobs)
            if "other jobs make better use" in told:
                sizes = {each.job_id: each.allocation for each in seen.decisions.values()}
                having = [each for each in seen.world.jobs if not sizes[each.id].is_empty and not each.spec.tracked]
                minima = [seen.least(each, sizes[each.id].gpu_type) for each in having]
                assert seen.fits(*minima, seen.least(job, None))
                assert any(
                    seen.demand(each, sizes[each.id]) != least for each, least in zip(having, minima, strict=True)
                )
        case Reason.NOT_WORTH_RESCALING:
            factor = re.search(r"([\d.]+) times as fast", told)
            assert factor is not None
            assert float(factor[1]) > 1.0
        case Reason.LEARNING_SPEED if told.startswith("Keeps"):
            assert size == before
        case Reason.GRANTED_MORE:
            assert size != before
        case Reason.UNCHANGED:
            assert "no other size within its limits" in told
        case Reason.NO_FURTHER_GAIN:
            most = job.spec.worker.maximum, job.spec.server.maximum
            at_most = [has >= may for has, may in zip(pair(size), most, strict=True)]
            refused = re.search(r"its owner allows no more (worker|server)s", told)
            is_limited = most[1] > 0 and any(at_most) and not all(at_most)
            assert (refused is not None) == is_limited
            assert refused is None or at_most[("worker", "server").index(refused[1])]
        case Reason.MEETING_DEADLINE | Reason.DEADLINE_CANNOT_BE_MET:
            assert job.spec.deadline_at is not None
        case Reason.WITHIN_BUDGET:
            assert job.spec.convergence.max_cost is not None
        case Reason.NO_FEASIBLE_NODE:
            assert size.is_empty or "no node has room" in told
            if "even when it is empty" in told:
                check_hosted_nowhere(seen, job, told)
        case _:
            check_state(seen.world, job, decision)


def check_state(world: Snapshot, job: Job, decision: Decision) -> None:
    """Reasons of jobs that take no part in the sharing: what is said of them holds."""
    rule = job.spec.convergence
    match decision.reason:
        case Reason.PAUSED_BY_OWNER:
            assert job.owner_paused
            assert decision.allocation.is_empty
        case Reason.WAITING_FOR_RETRY:
            assert job.retry is not None
            assert job.retry.at > world.now
            assert job.retry.error in decision.message
            assert decision.allocation.is_empty
        case Reason.CANCELLING:
            assert job.directive is Directive.CANCEL
            assert decision.allocation.is_empty
        case Reason.TRACKED:
            assert job.spec.tracked
        case Reason.LIMIT_REACHED:
            assert f"({decision.forecast.rule}) at step {job.step}" in decision.message
            assert job.started_at is not None
            spent = rule.max_cost is not None and job.spent >= rule.max_cost
            assert spent or (rule.max_seconds is not None and world.now >= job.started_at + rule.max_seconds)
        case Reason.CONVERGED:
            assert (decision.forecast.converged, decision.forecast.rule) == (True, "target_loss")
            assert rule.target_loss is not None
            assert job.losses[-1] <= rule.target_loss
        case _:
            pass


def check_verb(decision: Decision, *, has_trained: bool) -> None:
    """What it is said to do is what it does: one that has not trained yet does not pause."""
    size, before, told = decision.allocation, decision.previous, decision.message
    tasks = size.workers + size.servers - before.workers - before.servers
    if told.startswith("Keeps"):
        assert size == before
        assert sizes_in(told)[0] == pair(size)
    elif told.startswith(("Starts", "Goes on")):
        assert before.is_empty
        assert sizes_in(told)[0] == pair(size)
    elif told.startswith(("Grows", "Shrinks", "Moves", "Changes")):
        assert sizes_in(told)[:2] == [pair(before), pair(size)]
        assert tasks > 0 or not told.startswith("Grows")
        assert tasks < 0 or not told.startswith("Shrinks")
    elif told.startswith("Waits"):
        assert size.is_empty
        assert before.is_empty or not has_trained
    elif told.startswith("Paused:"):
        assert size.is_empty
        assert not before.is_empty
        assert has_trained


def check_hosted_nowhere(seen: Seen, job: Job, told: str) -> None:
    """No open node has room for all that the job needs at least, as far as these worlds have one role or one node."""
    nodes = {node.name: node for node in seen.world.nodes}
    closed = {name for name, node in nodes.items() if not node.schedulable}
    named = re.search(r"Closed or lost: (.*?)(?: and others)?\.", told)
    assert set(named[1].split(", ")) <= closed if named else not closed
    stays = CurrentSlots().of(seen.world)[job.id]
    least = {Role.WORKER: job.spec.worker, Role.SERVER: job.spec.server}
    lacks = [
        (demand.resources, demand.minimum - sum(slot[0] is role and node in closed for slot, node in stays.items()))
        for role, demand in least.items()
    ]
    for node in nodes.values():
        need = sum((each * max(count, 0) for each, count in lacks), Resources())
        assert not node.schedulable or not need.fits_in(node.capacity)


def check_what_quotas_come_to(seen: Seen, job: Job, told: str) -> None:
    """What is said of a quota that comes to less is so, and that others' quotas are why."""
    if (found := re.search(r"quota of .* comes to (.*?) now(, because the quotas of all)?", told)) is None:
        return
    world, project = seen.world, job.spec.project
    right = guarantees(world.quotas, *room_of(world))[project]
    if cores := re.search(r"([\d.]+) cores?", found[1]):
        assert float(cores[1]) == pytest.approx(right.cpu, abs=0.0100001)
    if found[2] is not None:
        alone = [guarantee_alone(quota, room_of(world).capacity) for quota in world.quotas]
        assert not sum(alone, Resources()).fits_in(world.capacity)


def check_quota(seen: Seen, job: Job, asked: Resources) -> None:
    """The project's guarantee does not hold it, or others have a right to the room."""
    project = job.spec.project
    quota = next((quota for quota in seen.world.quotas if quota.project == project), None)
    told = seen.decisions[job.id].message
    if "better use of the room in its quota" in told:
        others = {
            each.id: seen.decisions[each.id].allocation for each in seen.world.jobs if each.spec.project == project
        }
        others = {name: size for name, size in others.items() if not size.is_empty}
        named = {name for name in others if re.search(rf"\b{name}\b", told)}
        assert named, told
        for name in named:
            least = seen.job(name).spec
            assert sum(pair(others[name])) > least.worker.minimum + least.server.minimum
        least_of_all = sum((seen.least(seen.job(name), None) for name in others), seen.least(job, None))
        assert least_of_all.fits_in(guarantees(seen.world.quotas, *room_of(seen.world))[project])
        return
    if quota is None or quota.may_borrow:
        assert any(each.project != project for each in seen.world.quotas)
        return
    assert not fits_quota(seen, job, asked)


def check_worker_limit(seen: Seen, job: Job, decision: Decision) -> None:
    """The limit that it names is of its owner or project, and has no room for it beside what the others need."""
    (limit,) = [each for each in seen.world.worker_limits if f"may hold {each.most} worker" in decision.message]
    assert limit.project == job.spec.project
    others = [each for each in seen.world.jobs if each.spec.project == limit.project and each.id != job.id]
    if decision.reason is Reason.WAITING_FOR_WORKER_LIMIT:
        having = [each for each in others if not seen.decisions[each.id].allocation.is_empty]
        assert decision.allocation.is_empty
        ends = {
            each for each, told in seen.decisions.items() if told.reason in (Reason.CONVERGED, Reason.LIMIT_REACHED)
        }
        least = (
            seen.decisions[each.id].allocation.workers if each.id in ends else each.spec.worker.minimum
            for each in having
        )
        fits = sum(least) + job.spec.worker.minimum <= limit.most
        grown = [each for each in having if seen.decisions[each.id].allocation.workers > each.spec.worker.minimum]
        assert fits == ("some of which have more than they need at least" in decision.message)
        assert grown or not fits
    else:
        assert 0 < decision.allocation.workers < job.spec.worker.maximum
        assert decision.allocation.workers <= limit.most


def fits_quota(seen: Seen, job: Job, asked: Resources) -> bool:
    """Whether the job could have that much beside the other jobs of its project."""
    project = job.spec.project
    quota = next((quota for quota in seen.world.quotas if quota.project == project), None)
    if quota is None or quota.may_borrow:
        return True
    right = guarantees(seen.world.quotas, *room_of(seen.world))[project]
    held = [each for each in seen.decisions.values() if seen.job(each.job_id).spec.project == project]
    others = sum(
        (seen.demand(seen.job(each.job_id), each.allocation) for each in held if each.job_id != job.id), Resources()
    )
    return (others + seen.kept_for_others(job, project) + asked).fits_in(right)


def fits_beside(seen: Seen, job: Job) -> bool:
    return seen.fits(seen.held_by_others(job), seen.least(job, None))


def waits_longer(one: Job, than: Job) -> bool:
    return one.id != than.id and one.allocation.is_empty and one.submitted_at <= than.submitted_at


@st.composite
def crowded(draw: st.DrawFn) -> Snapshot:
    """Cores only: jobs of several sizes, known and new, on one or two nodes, some projects with quotas."""
    nodes = a_cluster(*draw(st.lists(st.sampled_from([2.0, 4.0, 8.0]), min_size=1, max_size=2)))
    jobs = []
    for number in range(draw(st.integers(1, 4))):
        least = draw(st.integers(1, 2))
        spec = replace(
            a_spec(
                minimum=(least, 1),
                maximum=(draw(st.integers(least, 8)), draw(st.integers(1, 4))),
                priority=draw(st.sampled_from([1.0, 4.0])),
            ),
            project=draw(st.sampled_from(["a", "b"])),
        )
        speed = law(compute=draw(st.sampled_from([0.1, 0.8, 4.0])))
        known = samples(speed, [(1, 1), (2, 1), (2, 2), (4, 2)]) if draw(st.booleans()) else ()
        jobs.append(a_job(f"j{number}", spec=spec, measured=known, submitted_at=9_000.0 + 10 * number))
    quotas = draw(st.sampled_from([(), (Quota("a", share=0.5, may_borrow=False),), (Quota("b", cpu=2.0),)]))
    return replace(a_snapshot(jobs, nodes), quotas=quotas)


@st.composite
def limited(draw: st.DrawFn) -> Snapshot:
    """Crowded worlds in which the jobs of a project, or of both, hold a few workers together."""
    most = draw(st.permutations([1, 2, 3, 5]))
    limits = [WorkerLimit(number, project=project) for number, project in zip(most, "ab", strict=False)]
    return replace(draw(crowded()), quotas=(), worker_limits=tuple(limits[: draw(st.integers(1, 2))]))


@st.composite
def in_every_state(draw: st.DrawFn) -> Snapshot:
    """Crowded worlds in which jobs are paused, wait for a retry, are cancelled, watched only, or at their end."""
    world = draw(crowded())
    return replace(world, jobs=tuple(_in_state(draw(st.sampled_from(_STATES)), job) for job in world.jobs))


_STATES = ("scheduled", "paused", "retry", "cancelled", "tracked", "limit", "converged")


def _in_state(state: str, job: Job) -> Job:
    spec = job.spec
    match state:
        case "paused":
            return replace(job, owner_paused=True)
        case "retry":
            return replace(job, retry=Retry(1, 2, NOW + 1000.0, 1000.0, "OSError: stale file handle"))
        case "cancelled":
            return replace(job, directive=Directive.CANCEL)
        case "tracked":
            return replace(job, spec=replace(spec, tracked=True))
        case "limit":
            return replace(job, spec=replace(spec, convergence=ConvergenceRule(max_seconds=60.0)))
        case "converged":
            steps = tuple(float(10 * number) for number in range(1, 41))
            losses = tuple(1.0 / (0.05 * step + 1.0) for step in steps)
            reached = replace(spec, convergence=ConvergenceRule(target_loss=0.2))
            return replace(job, spec=reached, step=400, loss_steps=steps, losses=losses)
        case _:
            return job


def test_random_worlds_reach_every_reason() -> None:
    """What no world reaches is not checked above."""
    reached = set[Reason]()

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(world=st.one_of(worlds(), crowded(), in_every_state(), limited()))
    def collect(world: Snapshot) -> None:
        if reached == set(Reason):
            return  # the other worlds are not needed
        for _ in range(4):
            after, outcome = next_round(world, OPTIMUS, PRICES)
            reached.update(decision.reason for decision in outcome.decisions)
            world = trained(after, 60.0)

    collect()
    assert reached == set(Reason)


@pytest.mark.parametrize(
    "kind",
    [worlds(), crowded(), in_every_state(), limited()],
    ids=["constrained", "crowded", "in every state", "limited"],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_sentence_is_true_of_its_plan(kind: st.SearchStrategy[Snapshot], data: st.DataObject) -> None:
    world = data.draw(kind)
    for _ in range(4):
        after, outcome = next_round(world, OPTIMUS, PRICES)
        seen = Seen(world, {decision.job_id: decision for decision in outcome.decisions})
        for decision in outcome.decisions:
            note(f"{decision.reason} {decision.message}")
            check(seen, decision)
        world = trained(after, 60.0)


# --- nodes that are closed -------------------------------------------------------------------------------------------


@st.composite
def with_quotas(draw: st.DrawFn) -> Snapshot:
    """One or two nodes, jobs of three projects with quotas of every size, and rounds until they have what they get."""
    nodes = a_cluster(*draw(st.lists(st.sampled_from([4.0, 8.0]), min_size=1, max_size=2)))
    jobs = []
    for number in range(draw(st.integers(1, 5))):
        least = draw(st.integers(1, 3))
        spec = a_spec(minimum=(least, 0), maximum=(least + draw(st.integers(0, 3)), 0))
        spec = replace(spec, project=draw(st.sampled_from("abc")), architecture=Architecture.ALLREDUCE)
        jobs.append(a_job(f"j{number}", spec=spec, submitted_at=9_000.0 + 10 * number))
    amounts = st.sampled_from([None, 0.0, 1.0, 3.0, 4.0, 8.0, 100.0])
    quotas = [
        Quota(project, cpu=cpu, share=0.5 if cpu is None else None, may_borrow=draw(st.booleans()))
        for project, cpu in zip("ab", draw(st.tuples(amounts, amounts)), strict=True)
    ]
    return replace(a_snapshot(jobs, nodes), quotas=tuple(quotas[: draw(st.integers(1, 2))]))


def closed(world: Snapshot, names: Collection[str], how: str) -> Snapshot:
    """The world with these nodes cordoned, drained or gone."""
    if how == "gone":
        return replace(world, nodes=tuple(node for node in world.nodes if node.name not in names))
    shut = {node.name: replace(node, schedulable=False, emptied=how == "drained") for node in world.nodes}
    return replace(world, nodes=tuple(shut[each.name] if each.name in names else each for each in world.nodes))


@settings(max_examples=150, deadline=None)
@given(
    world=with_quotas(),
    how=st.sampled_from(["cordoned", "drained", "gone"]),
    which=st.sampled_from([("node-0",), ("node-1",), ("node-0", "node-1")]),
    are_started=st.booleans(),
)
def test_every_sentence_is_true_when_nodes_are_closed_under_quotas(
    world: Snapshot, how: str, which: tuple[str, ...], are_started: bool
) -> None:
    opened = world.nodes
    for _ in range(2):
        world = trained(next_round(world, OPTIMUS, PRICES)[0], 60.0)
    if not are_started:
        world = replace(world, tasks=(), jobs=tuple(replace(job, started_at=None) for job in world.jobs))
    for shut in (True, True, False):
        world = closed(world, which, how) if shut else replace(world, nodes=opened)
        after, outcome = next_round(world, OPTIMUS, PRICES)
        seen = Seen(world, {decision.job_id: decision for decision in outcome.decisions})
        for decision in outcome.decisions:
            note(f"{how} {shut} {decision.reason} {decision.message}")
            are_placed = not any("no combination of nodes" in each.message for each in outcome.decisions)
            if are_placed or decision.reason is not Reason.BETTER_USED_ELSEWHERE:  # of those without a place, too
                check(seen, decision)
            if world.capacity.cpu or how != "cordoned" or not are_started:
                continue
            stays = len(CurrentSlots().of(world)[decision.job_id])
            assert decision.allocation.workers == stays or decision.reason is Reason.NO_FURTHER_GAIN
            if stays < decision.previous.workers:
                is_of_room = decision.reason in (Reason.NO_FEASIBLE_NODE, Reason.NO_FURTHER_GAIN)
                assert "no node has room" in decision.message or is_of_room
        world = trained(after, 60.0)


OF_ROOM = (
    Reason.BETTER_USED_ELSEWHERE,
    Reason.MINIMUM_ELSEWHERE,
    Reason.WAITING_FOR_RESOURCES,
    Reason.NO_FEASIBLE_NODE,
)


def could_be_kept(before: Job, stays: Mapping[tuple[Role, int], str], after: Snapshot) -> bool:
    """Whether its tasks could stay where they are, beside those that others have after the round."""
    free = {node.name: node.capacity.cpu for node in after.nodes if node.schedulable}
    others = [(job, placed.node) for job in after.jobs if job.id != before.id for placed in job.wanted_tasks]
    for job, node in [*others, *((before, node) for node in stays.values())]:
        if node in free:
            free[node] -= job.spec.worker.resources.cpu
    return all(each >= -HAIR for each in free.values())


@settings(max_examples=150, deadline=None)
@given(world=with_quotas(), which=st.sampled_from(["node-0", "node-1"]), has_quotas=st.booleans())
def test_no_job_shrinks_for_room_that_no_job_takes(world: Snapshot, which: str, has_quotas: bool) -> None:
    """On a partly closed cluster: of room on a closed node nobody else gets anything."""
    world = world if has_quotas else replace(world, quotas=())
    for _ in range(2):
        world = trained(next_round(world, OPTIMUS, PRICES)[0], 60.0)
    for _ in range(2):
        world = closed(world, (which,), "cordoned")
        after, outcome = next_round(world, OPTIMUS, PRICES)
        grows = {each.project for each in world.quotas if not each.may_borrow} & {
            Seen(world, {}).job(each.job_id).spec.project
            for each in outcome.decisions
            if each.allocation.workers > each.previous.workers
        }
        is_reserved = any("goes first" in each.message for each in outcome.decisions)
        for decision in outcome.decisions if world.capacity.cpu and not is_reserved else ():
            job = Seen(world, {}).job(decision.job_id)
            note(f"{decision.reason} {decision.message}")
            slots_of = CurrentSlots().of(world)[job.id]
            whole = takewhile(lambda rank, has=slots_of: (Role.WORKER, rank) in has, numbers())  # type: ignore[misc]
            stays = {(Role.WORKER, rank): slots_of[Role.WORKER, rank] for rank in whole}
            shrinks = job.spec.worker.minimum <= len(stays) > decision.allocation.workers
            if shrinks and decision.reason in OF_ROOM:
                assert job.spec.project in grows or not could_be_kept(job, stays, after)
        world = trained(after, 60.0)


def test_a_job_on_a_closed_node_neither_shrinks_nor_moves_for_a_job_without_a_place() -> None:
    """It was to shrink and to leave the closed node, and with that another one paused."""
    spec = replace(a_spec(minimum=(3, 0), maximum=(5, 0)), architecture=Architecture.ALLREDUCE)
    large = a_job("large", has=(5, 0), nodes="node-0", spec=spec)
    *four, last = large.wanted_tasks
    large = replace(large, wanted_tasks=(*four, last._replace(node="node-1")))
    small = a_job("small", has=(3, 0), nodes="node-1", spec=replace(spec, worker=replace(spec.worker, maximum=4)))
    waits = a_job("waits", spec=replace(spec, worker=replace(spec.worker, maximum=3)))
    world = closed(a_snapshot([large, small, waits], a_cluster(4.0, 4.0)), ("node-0",), "cordoned")
    after, outcome = next_round(world, OPTIMUS, PRICES)
    assert [each.allocation.workers for each in outcome.decisions] == [5, 3, 0]
    assert [job.wanted_tasks for job in after.jobs[:2]] == [large.wanted_tasks, small.wanted_tasks]


def test_what_a_project_holds_on_closed_nodes_within_its_quota_is_guaranteed() -> None:
    """What it borrowed is not, and of the open nodes it has as much less."""
    spec = a_spec(minimum=(1, 0), maximum=(4, 0))
    jobs = [
        a_job(f"j-{project}", has=(count, 0), nodes="node-0", spec=replace(spec, project=project))
        for project, count in (("a", 3), ("b", 2), ("c", 1))
    ]
    world = closed(a_snapshot(jobs, a_cluster(8.0, 4.0)), ("node-0",), "cordoned")
    rights = guarantees((Quota("a", cpu=4.0), Quota("b", cpu=1.0), Quota("d", cpu=4.0)), *room_of(world))
    assert {project: round(right.cpu, 6) for project, right in rights.items()} == {"a": 3.8, "b": 1.0, "d": 3.2}
    shares = guarantees((Quota("a", share=0.25),), *room_of(closed(world, ("node-1",), "cordoned")))
    assert shares["a"].cpu == 3.0, "a quarter of all nodes, closed as they are"


# --- tasks that move -------------------------------------------------------------------------------------------------


def moves_in(told: str) -> dict[Role, int | None]:
    """How many tasks of each role are told to move: None for all."""
    found = re.search(r"placed anew: (.*?) moves? to", told)
    counted = {} if found is None else {words: words.split(" ")[0] for words in found[1].split(" and ")}
    return {
        Role.SERVER if "server" in words else Role.WORKER: int(first) if first.isdigit() else None
        for words, first in counted.items()
    }


def slots(job: Job) -> dict[tuple[Role, int], str]:
    return {(placed.key.role, placed.key.rank): placed.node for placed in job.wanted_tasks}


@settings(max_examples=60, deadline=None)
@given(world=crowded(), cpus=st.lists(st.sampled_from([2.0, 3.0, 4.0]), min_size=2, max_size=4))
def test_tasks_that_move_when_a_job_changes_are_told(world: Snapshot, cpus: list[float]) -> None:
    """And what it trains with until they take part: those of each role that stay, and if none does, all that there
    are (`choose_members` of its coordinator)."""
    world = replace(world, nodes=a_cluster(*cpus), quotas=())
    for _ in range(5):
        after, outcome = next_round(world, OPTIMUS, PRICES)
        jobs = {job.id: job for job in after.jobs}
        for decision in outcome.decisions:
            note(decision.message)
            size, had = decision.allocation, decision.previous
            if size == had or had.is_empty or size.is_empty:
                assert "placed anew" not in decision.message
                continue
            before, now = (slots(each) for each in (Seen(world, {}).job(decision.job_id), jobs[decision.job_id]))
            moved = [slot for slot in before if slot in now and now[slot] != before[slot]]
            told, counts = moves_in(decision.message), {Role.WORKER: had.workers, Role.SERVER: had.servers}
            assert ("placed anew" in decision.message) == bool(moved)
            for role, count in counts.items():
                n_moved = sum(slot[0] is role for slot in moved)
                assert told.get(role, 0) == (None if n_moved == count else n_moved)
            stay = [slot[0] for slot in before if now.get(slot) == before[slot]]
            meanwhile = tuple(stay.count(role) or count for role, count in counts.items())
            is_slower = any(has < min(both) for has, *both in zip(meanwhile, pair(had), pair(size), strict=True))
            if not moved or not is_slower:
                assert "it trains with" not in decision.message
            else:
                assert sizes_in(decision.message.partition("it trains with")[2]) == [meanwhile]
        world = trained(after, 60.0)


def test_a_growth_whose_worker_moves_says_with_how_few_it_trains_until_then() -> None:
    """Three workers and a server fill node-0: with another server they are spread so that less crosses between."""
    nodes = {(Role.WORKER, rank): "node-0" for rank in range(3)}
    nodes |= {(Role.SERVER, 0): "node-0", (Role.SERVER, 1): "node-1"}
    known = samples(law(compute=0.1, transfer=2.0), [(3, 1), (3, 2), (3, 5), (1, 1), (2, 2)])
    spec = a_spec(minimum=(3, 1), maximum=(3, 5))
    job = a_job("a", has=(3, 2), nodes=nodes, spec=spec, measured=known, allocated_at=NOW - 1000.0)
    (decision,) = plan(a_snapshot([job], a_cluster(4.0, 4.0)), OPTIMUS, PRICES).decisions
    assert pair(decision.allocation) == (3, 3)
    assert decision.message.endswith(
        "Its tasks are placed anew: 1 of its workers moves to node-1, and until it takes part it trains with 2 workers "
        "and 2 servers."
    )


ONE = samples(law(), [(1, 1)])


# --- advice ----------------------------------------------------------------------------------------------------------


def done(world: Snapshot, job_id: str, words: str) -> Snapshot:
    """The world in which somebody has followed the advice, read from its words."""
    job = next(job for job in world.jobs if job.id == job_id)
    spec = job.spec
    if found := re.fullmatch(r"a priority of ([\d.e+]+) \(now .*", words):
        return _with(world, replace(job, spec=replace(spec, priority=float(found[1]))))
    if raised := re.findall(r"`workers_together` of (\d+) for project (\w+)", words):
        most = {project: int(number) for number, project in raised}
        limits = (replace(each, most=most.get(each.project or "", each.most)) for each in world.worker_limits)
        return replace(world, worker_limits=tuple(limits))
    if words.startswith("`"):
        for role, bound, value in re.findall(r"`(worker|server)s\.(min|max)` of (\d+)", words):
            demand = getattr(spec, role)
            spec = replace(spec, **{role: replace(demand, **{f"{bound}imum": int(value)})})
        return _with(world, replace(job, spec=spec))
    if found := re.fullmatch(r"one more node like (.*)", words):
        like = next(node for node in world.nodes if node.name == found[1])
        return replace(world, nodes=(*world.nodes, Node("another", like.capacity)))
    if re.fullmatch(r"the end of j\d+|the ends of j\d+(, j\d+)* and j\d+ together", words):
        return _without(world, set(re.findall(r"j\d+", words)))
    if words == "the ends of all jobs with tasks together":
        return _without(world, {each.id for each in world.jobs if each.id != job_id and not each.allocation.is_empty})
    if words == "the ends of all other jobs":
        return _without(world, {each.id for each in world.jobs if each.id != job_id})
    raise LookupError(words)


def _with(world: Snapshot, job: Job) -> Snapshot:
    return replace(world, jobs=tuple(job if each.id == job.id else each for each in world.jobs))


def _without(world: Snapshot, ended: set[str]) -> Snapshot:
    return replace(
        world,
        jobs=tuple(each for each in world.jobs if each.id not in ended),
        tasks=tuple(task for task in world.tasks if task.key.job_id not in ended),
    )


@settings(max_examples=25, deadline=None)
@given(world=crowded() | limited())
def test_advice_gives_the_job_more_when_it_is_followed(world: Snapshot) -> None:
    world = replace(world, quotas=())
    for _ in range(3):
        world, _ = next_round(world, OPTIMUS, PRICES)
        world = trained(world, 60.0)
    before = {decision.job_id: decision.allocation for decision in plan(world, OPTIMUS, PRICES).decisions}
    has = {job.id: sum(pair(job.allocation)) for job in world.jobs}
    for job_id, size in before.items():
        advice = what_gives_more(world, job_id, lambda snapshot: plan(snapshot, OPTIMUS, PRICES))
        loses = sum(pair(size)) < has[job_id] and advice != Advice(())
        assert advice.loses_to == (size if loses else None)
        for words in advice.changes:
            note(f"{job_id}: {words}")
            if "measure" in words:
                continue
            # Whoever acts on it comes after the next round.
            then = world if loses or not size.is_empty else next_round(world, OPTIMUS, PRICES)[0]
            followed = done(then, job_id, words)
            after = {each.job_id: each.allocation for each in plan(followed, OPTIMUS, PRICES).decisions}
            given = sum(pair(after[job_id]))
            assert given >= has[job_id] if loses else given > sum(pair(size))


@settings(max_examples=25, deadline=None)
@given(world=st.one_of(crowded(), limited()))
def test_whoever_is_told_that_more_is_of_no_use_is_advised_nothing_but_a_limit_that_is_named(world: Snapshot) -> None:
    """Of one state of the world: no node, priority or quota gives it more. Without others a size lasts longer, so that
    a change which is not worth it now may be."""
    for _ in range(3):
        world, _ = next_round(world, OPTIMUS, PRICES)
        world = trained(world, 60.0)
        for decision in plan(world, OPTIMUS, PRICES).decisions:
            if decision.reason not in (Reason.NO_FURTHER_GAIN, Reason.UNCHANGED):
                continue
            note(f"{decision.job_id}: {decision.message}")
            told = what_gives_more(world, decision.job_id, lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
            if decision.reason is Reason.NO_FURTHER_GAIN:
                own = [each for each in told if not each.startswith("the end of ")]
                assert all(f"no more {limit_in(each)}" in decision.message for each in own), told


def limit_in(words: str) -> str:
    """`workers` of "`workers.max` of 4 (now 2)"."""
    found = re.match(r"`(workers|servers)\.max` of", words)
    assert found is not None, f"no limit of its own: {words}"
    return found[1]


def test_a_job_that_may_have_no_more_workers_is_told_that_servers_are_of_no_use() -> None:
    spec = a_spec(maximum=(2, 4))
    speed = law(compute=4.0, transfer=0.0)
    job = a_job("a", has=(2, 1), spec=spec, measured=samples(speed, [(1, 1), (2, 1), (2, 2)]))
    world = a_snapshot(jobs=[job], nodes=a_cluster(16))
    (decision,) = plan(world, OPTIMUS, PRICES).decisions
    assert decision.message == (
        "Keeps 2 workers and 1 server: more servers would make it hardly faster, and its owner allows no more workers."
    )
    told = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES))
    assert told.changes == ("`workers.max` of 3 (now 2)",)
    assert told.now == decision


def test_more_workers_are_not_advised_to_a_script_of_one_process() -> None:
    told = {}
    for may_grow in (False, True):
        spec = a_spec(minimum=(1, 0), maximum=(1, 0))
        spec = replace(spec, architecture=Architecture.SCRIPT, may_grow=may_grow)
        spec = replace(spec, server=replace(spec.server, minimum=0, maximum=0))
        job = a_job("a", has=(1, 0), spec=spec, measured=samples(lambda w, _: float(w), [(1, 0), (2, 0), (4, 0)]))
        world = a_snapshot(jobs=[job], nodes=a_cluster(16))
        told[may_grow] = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert told == {False: (), True: ("`workers.max` of 2 (now 1)",)}


def test_more_workers_are_not_advised_to_a_script_that_keeps_its_size() -> None:
    """Its owner allows them already: another limit changes nothing."""
    told = {}
    for size_stays in (True, False):
        spec = replace(a_spec(minimum=(2, 0), maximum=(2, 0)), architecture=Architecture.SCRIPT)
        spec = replace(spec, size_stays=size_stays, may_grow=not size_stays)
        spec = replace(spec, server=replace(spec.server, minimum=0, maximum=0))
        job = a_job("a", has=(2, 0), spec=spec, measured=samples(lambda w, _: float(w), [(1, 0), (2, 0), (4, 0)]))
        world = a_snapshot(jobs=[job], nodes=a_cluster(16))
        told[size_stays] = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert told == {True: (), False: ("`workers.max` of 3 (now 2)",)}


@pytest.mark.parametrize("architecture", [Architecture.SCRIPT, Architecture.ALLREDUCE])
def test_fewer_workers_are_not_advised_to_a_script_whose_number_of_them_is_fixed(architecture: Architecture) -> None:
    """With fewer it would train otherwise; of another job it is but its owner's limit."""
    spec = replace(a_spec(minimum=(2, 0), maximum=(2, 0)), architecture=architecture)
    spec = replace(spec, server=replace(spec.server, minimum=0, maximum=0))
    one = replace(spec, worker=replace(spec.worker, minimum=1, maximum=1))
    held = a_job("b", has=(1, 0), spec=one, measured=samples(lambda w, _: float(w), [(1, 0)]))
    world = a_snapshot(jobs=[a_job("a", spec=spec, submitted_at=NOW - 1.0), held], nodes=a_cluster(2))
    told = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert any("workers.min" in words for words in told) == (architecture is Architecture.ALLREDUCE)


def test_what_gives_more_once_a_speed_is_measured_is_told_where_nothing_does_before() -> None:
    spec = replace(a_spec(minimum=(1, 0), maximum=(4, 0)), architecture=Architecture.SCRIPT)
    learning = a_job("a", has=(1, 0), spec=spec, measured=samples(lambda w, _: float(w), [(1, 0)]), allocated_at=NOW)
    others = a_job("b", has=(3, 0), spec=a_spec(minimum=(3, 0), maximum=(3, 0)))
    world = a_snapshot(jobs=[learning, others], nodes=a_cluster(4))
    (decision, _) = plan(world, OPTIMUS, PRICES).decisions
    assert decision.reason is Reason.LEARNING_SPEED
    told = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert "the end of b, once its speed at this size is measured, if that is as predicted" in told


def test_a_measurement_gives_more_if_it_is_as_predicted_and_nobody_is_told_to_pause_for_it() -> None:
    """It may turn out otherwise: then the others keep what they have."""
    spec = replace(a_spec(minimum=(1, 0), maximum=(4, 0)), architecture=Architecture.SCRIPT)
    learning = a_job("a", has=(1, 0), spec=spec, measured=samples(lambda w, _: float(w), [(1, 0)]), allocated_at=NOW)
    held = a_job("b", has=(3, 0), spec=a_spec(minimum=(3, 0), maximum=(3, 0)))

    def pausing_b_once_a_is_measured(snapshot: Snapshot) -> Plan:
        planned = plan(snapshot, OPTIMUS, PRICES)
        if len(snapshot.jobs[0].speed_samples) == len(learning.speed_samples):
            return planned
        sizes = {"a": Allocation(4, 0), "b": Allocation(0, 0)}
        decisions = tuple(each._replace(allocation=sizes[each.job_id]) for each in planned.decisions)
        return replace(planned, decisions=decisions)

    world = a_snapshot(jobs=[learning, held], nodes=a_cluster(4))
    told = what_gives_more(world, "a", pausing_b_once_a_is_measured).changes
    assert told[0] == "a measurement of its speed at this size since it has it, if that is as predicted"


@pytest.mark.parametrize(("room", "told"), [(2, 2), (3, 3), (1, 1)])
def test_no_smaller_minimum_is_advised_than_the_largest_that_helps(room: int, told: int) -> None:
    spec = replace(a_spec(minimum=(4, 0), maximum=(4, 0)), architecture=Architecture.ALLREDUCE)
    spec = replace(spec, server=replace(spec.server, minimum=0, maximum=0))
    job = a_job("a", spec=spec, measured=samples(lambda w, _: float(w), [(1, 0), (2, 0), (3, 0), (4, 0)]))
    world = a_snapshot(jobs=[job], nodes=a_cluster(room))
    found = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert found[0] == f"`workers.min` of {told} (now 4)", found


@pytest.mark.parametrize(("most", "room", "told"), [(3, 4, 4), (3, 16, 4), (4, 16, 5)])
def test_no_larger_limit_is_advised_than_the_smallest_that_helps(most: int, room: int, told: int) -> None:
    spec = replace(a_spec(minimum=(1, 0), maximum=(most, 0)), architecture=Architecture.SCRIPT)
    spec = replace(spec, server=replace(spec.server, minimum=0, maximum=0))
    speeds = samples(lambda w, _: float(w), [(1, 0), (2, 0), (3, 0), (4, 0)])
    world = a_snapshot(jobs=[a_job("a", has=(most, 0), spec=spec, measured=speeds)], nodes=a_cluster(room))
    found = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert found == (f"`workers.max` of {told} (now {most})",)


def test_a_larger_limit_is_advised_before_the_speed_at_the_present_one_is_measured() -> None:
    """With the larger limit, too, it keeps its size until then, and grows after that."""
    spec = replace(a_spec(minimum=(1, 0), maximum=(2, 0)), architecture=Architecture.SCRIPT)
    spec = replace(spec, server=replace(spec.server, minimum=0, maximum=0))
    job = a_job("a", has=(2, 0), spec=spec, measured=samples(lambda w, _: float(w), [(1, 0)]), allocated_at=NOW)
    world = a_snapshot(jobs=[job], nodes=a_cluster(3))
    (decision,) = plan(world, OPTIMUS, PRICES).decisions
    assert decision.reason is Reason.AT_MAXIMUM
    told = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert told == ("`workers.max` of 3 (now 2), once its speed at this size is measured, if that is as predicted",)


def test_a_job_whose_owner_lowers_its_maximum_is_told_that_as_the_cause() -> None:
    measured = samples(lambda workers, _: float(workers), ALL_SIZES)
    before = a_job("a", has=(3, 1), spec=a_spec(maximum=(3, 1)), measured=measured)
    for most in (1, 2):
        lowered = replace(before, spec=a_spec(maximum=(most, 1)))
        (decision,) = plan(a_snapshot([lowered], a_cluster(8)), OPTIMUS, PRICES).decisions
        assert decision.reason is Reason.AT_MAXIMUM
        workers = f"{most} worker{'s' * (most > 1)}"
        begins = (
            f"Shrinks from 3 workers and 1 server to {workers} and 1 server: its owner allows no more than {workers}"
        )
        assert decision.message.startswith(begins)


def test_a_job_that_waits_is_told_when_the_next_round_starts_it() -> None:
    world = a_snapshot(jobs=[a_job("a", spec=a_spec(maximum=(1, 1)))], nodes=a_cluster(4))
    found = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES), waits=True)
    assert found == Advice(("the next round, as things are now",))


def test_a_larger_limit_is_advised_that_helps_when_those_that_share_it_are_measured_too() -> None:
    """`r0` takes the next worker as soon as its speed is measured."""
    spec = a_spec(minimum=(1, 0), maximum=(4, 0))
    spec = replace(spec, architecture=Architecture.ALLREDUCE, server=replace(spec.server, minimum=0, maximum=0))
    known = samples(lambda w, _: 10.0 * w**0.8, [(1, 0)])

    def world(first_is_known: bool, most: int) -> Snapshot:
        jobs = [
            a_job(
                f"r{n}", has=(1, 0), spec=spec, measured=known if n or first_is_known else (), submitted_at=9_000.0 + n
            )
            for n in range(3)
        ]
        limits = (WorkerLimit(most, project=spec.project),)
        return replace(a_snapshot(jobs, a_cluster(8.0)), worker_limits=limits)

    (told,) = [
        each
        for each in what_gives_more(
            world(first_is_known=False, most=3), "r1", lambda each: plan(each, OPTIMUS, PRICES)
        ).changes
        if each.startswith("`workers_together`")
    ]
    found = re.search(r"of (\d+) for", told)
    assert found is not None
    for is_known in (False, True):
        after = {each.job_id: each for each in plan(world(is_known, int(found[1])), OPTIMUS, PRICES).decisions}
        assert after["r1"].allocation.workers > 1


def test_each_job_whose_end_alone_gives_more_is_named() -> None:
    jobs = [a_job(name, has=(1, 1), spec=a_spec(maximum=(1, 1))) for name in ("b", "c")]
    waiting = a_job("a", spec=a_spec(maximum=(1, 1)))
    world = a_snapshot(jobs=[*jobs, waiting], nodes=a_cluster(4))
    told = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert {"the end of b", "the end of c"} <= set(told), told
    assert not any("all other jobs" in each for each in told)


def test_who_waits_for_a_quota_is_told_of_the_ends_of_those_that_hold_it() -> None:
    """Others end sooner, and their ends give it nothing."""
    one, two = (replace(a_spec(minimum=(n, 1), maximum=(n, 1)), project="vision") for n in (1, 3))
    short = [a_job(f"short-{n}", has=(1, 1), spec=a_spec(maximum=(1, 1)), step=900) for n in range(4)]
    holds = [a_job(name, has=(1, 1), spec=one) for name in ("b", "c")]
    world = a_snapshot([*short, *holds, a_job("a", spec=two)], a_cluster(32.0))
    world = replace(world, quotas=(Quota("vision", cpu=4.0, may_borrow=False),))
    (waits,) = [each for each in plan(world, OPTIMUS, PRICES).decisions if each.job_id == "a"]
    assert waits.reason is Reason.WAITING_FOR_QUOTA
    told = what_gives_more(world, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert "the ends of b and c together" in told, told
    assert not any("all other jobs" in each for each in told)
    first = replace(
        a_job("d", spec=replace(one, worker=replace(one.worker, minimum=3, maximum=3))), submitted_at=NOW - 900.0
    )
    behind = replace(world, jobs=(*world.jobs, first))
    told = what_gives_more(behind, "a", lambda snapshot: plan(snapshot, OPTIMUS, PRICES)).changes
    assert told, "its quota helps"
    assert not any("the ends of" in each for each in told), "it would be the other that starts then"


@pytest.mark.parametrize(
    ("needs", "told"), [(1, None), (2, "the ends of b and c together"), (4, "the ends of b, c, d and e together")]
)
def test_no_more_ends_are_told_than_help(needs: int, told: str | None) -> None:
    """Where one does not: of those that end soonest, as few as give it room."""
    holding = [
        a_job(name, has=(1, 1), spec=a_spec(maximum=(1, 1), rule=ConvergenceRule(max_steps=steps)), measured=ONE)
        for name, steps in (("b", 100), ("c", 200), ("d", 300), ("e", 400))
    ]
    waiting = a_job("a", spec=a_spec(minimum=(needs, needs), maximum=(needs, needs)))
    world = a_snapshot(jobs=[*holding, waiting], nodes=a_cluster(8))
    found = what_gives_more(world, "a", lambda each: plan(each, OPTIMUS, PRICES)).changes
    together = [each for each in found if " and " in each or "all other" in each]
    assert together == ([] if told is None else [told]), found


@pytest.mark.parametrize("awaited", ["b", "e"])
def test_the_end_that_a_job_is_told_to_wait_for_is_tried_first(awaited: str) -> None:
    """Though that of more jobs than are tried is expected sooner."""
    holding = [
        a_job(name, has=(1, 1), spec=a_spec(maximum=(1, 1), rule=ConvergenceRule(max_steps=steps)), measured=ONE)
        for name, steps in (("b", 100), ("c", 200), ("d", 300), ("e", 4000))
    ]
    waiting = a_job("a", spec=a_spec(maximum=(1, 1)))
    world = a_snapshot(jobs=[*holding, waiting], nodes=a_cluster(8))
    told = what_gives_more(world, "a", lambda each: plan(each, OPTIMUS, PRICES), told=ToldOfEnds((awaited,))).changes
    assert told[0] == f"the end of {awaited}"
    assert told.count(told[0]) == 1


def test_an_end_that_teaches_how_long_others_take_helps_who_then_starts() -> None:
    """Two wait of which nothing is known, the longer one for longer. A success of `c` tells how long they take, by the
    counts that their commands name; it tells nothing where it is cancelled."""
    plain = replace(a_spec(minimum=(1, 0), maximum=(1, 0)), architecture=Architecture.SCRIPT, family="train.py")
    spec = replace(plain, arguments=("--n", "300"), convergence=ConvergenceRule(max_steps=300, ends_itself=True))
    alone = samples(lambda _w, _p: 5.0, [(1, 0)])
    holding = a_job("c", has=(1, 0), spec=spec, measured=alone, step=200)
    long, short = (
        a_job(name, spec=replace(spec, arguments=("--n", count), convergence=ConvergenceRule(ends_itself=True)))
        for name, count in (("long", "900"), ("short", "60"))
    )
    long, short = replace(long, submitted_at=NOW - 30.0), replace(short, submitted_at=NOW - 10.0)
    world = a_snapshot([holding, long, short], a_cluster(1))

    def advice(job_id: str) -> tuple[str, ...]:
        return what_gives_more(world, job_id, lambda each: plan(each, OPTIMUS)).changes

    assert "the end of c, if it succeeds" in advice("short")
    assert "the end of c, if it is cancelled" in advice("long")
    told = what_gives_more(world, "long", lambda each: plan(each, OPTIMUS))
    assert told.with_one_end == WithOneEnd(sooner=frozenset({"short"}))
    (before,) = (each for each in plan(world, OPTIMUS).decisions if each.job_id == "c")
    taught = taught_by_ends(world.jobs[1:], [holding], {"c": before.forecast})
    for jobs, first in ((taught, "short"), (world.jobs[1:], "long")):
        decided = plan(replace(world, jobs=jobs), OPTIMUS).decisions
        assert [each.job_id for each in decided if not each.allocation.is_empty] == [first]


def test_no_end_is_told_to_help_where_another_job_is_told_to_start_with_it() -> None:
    """As planned now, `a` would start with the end of `c`, and `b` after it; by the queue it is `b` that does."""
    holding = a_job("c", has=(1, 1), spec=a_spec(maximum=(1, 1)), measured=ONE)
    jobs = [
        a_job(name, spec=a_spec(maximum=(1, 1)), submitted_at=NOW - age) for name, age in (("a", 20.0), ("b", 10.0))
    ]
    for cpu, is_told in ((2, False), (4, True)):
        spare = [a_job("d", has=(1, 1), spec=a_spec(maximum=(1, 1)), measured=ONE)] if cpu == 4 else []
        world = a_snapshot([holding, *spare, *jobs], a_cluster(cpu))

        def advice(told: ToldOfEnds, of: Snapshot = world) -> tuple[str, ...]:
            return what_gives_more(of, "a", lambda each: plan(each, OPTIMUS), told=told).changes

        assert "the end of c" in advice(ToldOfEnds())
        assert "the end of c" not in advice(ToldOfEnds(started_by={"c": {"b"}}))
        assert ("the end of d" in advice(ToldOfEnds(started_by={"c": {"b"}}))) is is_told
    room_for_both = a_snapshot([replace(holding, spec=a_spec(worker_cpu=3.0, maximum=(1, 1))), *jobs], a_cluster(4))
    told = what_gives_more(room_for_both, "a", lambda each: plan(each, OPTIMUS), told=ToldOfEnds((), {"c": {"b"}}))
    assert "the end of c" in told.changes


def test_no_advice_is_about_room_that_the_next_round_gives_to_another_job() -> None:
    """The next round starts `b`; with a higher priority it would start `a`. But that round comes within a second, and
    whoever follows the advice comes later."""
    jobs = [
        a_job(name, spec=a_spec(maximum=(1, 1)), submitted_at=NOW - age) for name, age in (("a", 10.0), ("b", 20.0))
    ]
    world = a_snapshot(jobs, a_cluster(2))
    assert {each.job_id: each.allocation.is_empty for each in plan(world, OPTIMUS).decisions} == {"a": True, "b": False}
    told = what_gives_more(world, "a", lambda each: plan(each, OPTIMUS))
    assert "the end of b" in told.changes
    assert not any(each.startswith("a priority of ") for each in told.changes)
    assert told.now == plan(world, OPTIMUS).decisions[0]
    later, _ = next_round(world, OPTIMUS)
    assert what_gives_more(later, "a", lambda each: plan(each, OPTIMUS)).changes == told.changes
    raised = done(later, "a", "a priority of 16 (now 1)")
    assert plan(raised, OPTIMUS).decisions[0].allocation.is_empty


def test_a_job_that_the_next_round_would_pause_is_told_what_keeps_what_it_has() -> None:
    """It has all that its owner allows: no priority gives it more."""
    whole = a_spec(minimum=(2, 2), maximum=(2, 2))
    urgent = replace(whole, deadline_at=NOW + 400.0, convergence=ConvergenceRule(max_steps=200))
    has = a_job("has", has=(2, 2), spec=whole, measured=samples(law(), ALL_SIZES), allocated_at=NOW - 400.0)
    world = a_snapshot([has, a_job("urgent", spec=urgent, measured=samples(law(), ALL_SIZES))], a_cluster(4))
    advice = what_gives_more(world, "has", lambda each: plan(each, OPTIMUS))
    assert advice.loses_to == Allocation(0, 0)
    assert "one more node like node-0" in advice.changes
    larger = replace(world, nodes=a_cluster(8))
    assert what_gives_more(larger, "has", lambda each: plan(each, OPTIMUS)).loses_to is None
    assert not any(
        "priority" in each for each in what_gives_more(larger, "has", lambda each: plan(each, OPTIMUS)).changes
    )


def test_advice_of_a_deadline_names_the_deadline() -> None:
    one = replace(a_spec(maximum=(1, 1)), convergence=ConvergenceRule(max_steps=400))
    known = samples(law(), ALL_SIZES)
    trains = [a_job(name, has=(1, 1), spec=one, measured=known, allocated_at=NOW - 400) for name in ("a", "b")]
    dated = a_job("dated", spec=replace(one, deadline_at=NOW + 300.0), measured=samples(law(), ALL_SIZES))
    told = what_gives_more(
        a_snapshot([*trains, dated], a_cluster(4)), "dated", lambda each: plan(each, OPTIMUS)
    ).changes
    later, now = (instant_words(NOW + seconds) for seconds in (600.0, 300.0))
    assert f"a later deadline, {later} (now {now}) (which would pause b)" in told
    anew = [replace(each, unsaved_seconds=90.0) for each in trains]
    told = what_gives_more(a_snapshot([*anew, dated], a_cluster(4)), "dated", lambda each: plan(each, OPTIMUS)).changes
    pausing = [each for each in told if "would pause" in each]
    assert pausing
    assert all("(which would pause b, which loses 90 s of work)" in each for each in pausing)


def test_no_deadline_is_advised_that_may_well_be_missed() -> None:
    """Twice the time until now, or four times: where twice is just enough, four times is advised."""
    one = replace(a_spec(maximum=(1, 1)), convergence=ConvergenceRule(max_steps=400))
    known = samples(law(), ALL_SIZES)
    trains = [a_job(name, has=(1, 1), spec=one, measured=known, allocated_at=NOW - 400) for name in ("a", "b")]
    advised = set()
    for seconds in range(100, 320, 10):
        dated = a_job("dated", spec=replace(one, deadline_at=NOW + seconds), measured=known)
        snapshot = a_snapshot([*trains, dated], a_cluster(4))
        told = what_gives_more(snapshot, "dated", lambda each: plan(each, OPTIMUS)).changes
        for factor in (2, 4):
            if any(f"a later deadline, {instant_words(NOW + factor * seconds)}" in each for each in told):
                advised.add(factor)
                later = replace(dated, spec=replace(one, deadline_at=NOW + factor * seconds))
                planned = plan(a_snapshot([*trains, later], a_cluster(4)), OPTIMUS).decisions
                (message,) = (each.message for each in planned if each.job_id == "dated")
                assert not leaves_deadline_in_doubt(message)
    assert advised == {2, 4}


def a_queue(n_waiting: int) -> Snapshot:
    """Two jobs train, each in half of the cluster, and others wait that need all of it: `w0` has waited longest."""
    half, whole = (a_spec(minimum=(n, 1), maximum=(n, 1)) for n in (1, 3))
    trains = [a_job(name, has=(1, 1), spec=half, measured=ONE, started_at=NOW - 10.0) for name in ("f", "g")]
    waits = [a_job(f"w{n}", spec=whole, submitted_at=NOW - 100.0 + n) for n in range(n_waiting)]
    return a_snapshot(jobs=[*trains, *waits], nodes=a_cluster(4))


def test_a_job_behind_others_in_a_full_queue_is_told_how_many_go_first() -> None:
    """The ends of all that wait before it are no advice: nobody can bring them about."""
    world, policy = a_queue(4), policy_named("fifo")
    names = {job.id: job.id for job in world.jobs}

    def told(job_id: str, known: Mapping[str, str] = names) -> Advice:
        planner = partial(plan, policy=policy, settings=PRICES)
        return what_gives_more(world, job_id, planner, known, only_named=known is not names)

    assert "the ends of f and g together" in told("w0").changes
    assert told("w0").behind is None
    assert [(each.changes, each.behind) for each in map(told, ("w1", "w2", "w3"))] == [
        ((), Behind(2, n_first)) for n_first in (1, 2, 3)
    ]
    assert told("w3", {"w3": "w3"}).behind == Behind(None, None), "of jobs that the reader may not know of"


@settings(max_examples=5, deadline=None)
@given(world=crowded())
def test_whoever_may_not_know_of_other_jobs_is_told_of_none(world: Snapshot) -> None:
    for job in world.jobs:
        told = what_gives_more(world, job.id, lambda snapshot: plan(snapshot, OPTIMUS, PRICES), only_named=True).changes
        assert not any("the end of" in words or "other projects" in words for words in told)


def test_what_a_change_tells_of() -> None:
    world = a_snapshot(jobs=[], nodes=a_cluster(1))
    of_both = Change("the ends of all other jobs", world, "all others", frozenset({"b", "c"}))
    assert of_both.tells_only({"b", "c"})
    assert not of_both.tells_only({"c"})
    assert Change("a priority of 2", world, "priority").tells_only(())
    assert not Change("smaller quotas of other projects", world, "quotas of others").tells_only({"b"})


# --- advice that was tried -------------------------------------------------------------------------------------------


def tried(*jobs: Job, cpu: float, quotas: tuple[Quota, ...] = (), schedulable: bool = True) -> tuple[str, ...]:
    nodes = tuple(replace(node, schedulable=schedulable) for node in a_cluster(cpu))
    world = replace(a_snapshot(list(jobs), nodes), quotas=quotas)
    return what_gives_more(world, jobs[0].id, lambda each: plan(each, policy_named("optimus"))).changes


@pytest.mark.parametrize("cpu", [0.0, 1.0, 4.0])
def test_the_smallest_larger_quota_that_helps_is_told(cpu: float) -> None:
    """Also of a quota of nothing, and where twice as much would not do."""
    spec = replace(a_spec(minimum=(8, 2), maximum=(8, 2)), project="vision")
    found = tried(a_job("a", spec=spec), cpu=32.0, quotas=(Quota("vision", cpu=cpu, may_borrow=False),))
    raised = [each for each in found if "a quota of project vision" in each]
    assert raised == [f"a quota of project vision of 10 cores (now {cpu:g} core{'' if cpu == 1 else 's'})"]


def test_a_quota_of_part_of_a_core_is_advised_to_be_one_core_where_that_is_enough() -> None:
    spec = replace(a_spec(minimum=(1, 0), maximum=(1, 0)), project="vision", architecture=Architecture.SCRIPT)
    found = tried(a_job("a", spec=spec), cpu=2.0, quotas=(Quota("vision", cpu=0.5, may_borrow=False),))
    assert "a quota of project vision of 1 core (now 0.5 cores)" in found


@pytest.mark.parametrize("share", [0.1, 0.5, 0.67])
def test_a_larger_share_that_is_advised_is_no_larger_than_needed(share: float) -> None:
    spec = replace(a_spec(minimum=(4, 1), maximum=(4, 1)), project="vision")
    quotas = (Quota("vision", share=share, may_borrow=False),)
    found = tried(a_job("a", spec=spec), cpu=6.0, quotas=quotas)
    (raised,) = [each for each in found if "a quota of project vision" in each]
    assert raised == f"a quota of project vision of 84 % of the cluster (now {100 * share:.0f} % of the cluster)"


def test_a_closed_node_is_told_and_its_opening_is_advised() -> None:
    closed = a_snapshot([a_job("a")], tuple(replace(node, schedulable=False) for node in a_cluster(8.0)))
    (decision,) = plan(closed, policy_named("optimus")).decisions
    assert decision.reason is Reason.NO_FEASIBLE_NODE
    assert "Closed or lost: node-0." in decision.message
    assert any("optimus node uncordon node-0" in each for each in tried(a_job("a"), cpu=8.0, schedulable=False))


def test_the_opening_of_a_full_node_is_advised_with_room_on_it() -> None:
    big = a_spec(minimum=(4, 1), maximum=(4, 1))
    waits, trains = a_job("a", spec=big), a_job("b", has=(1, 1), spec=a_spec())
    opened = "node node-0 open again (if it was closed: `optimus node uncordon node-0`)"
    for quota, beside in (
        (None, "and room on it"),
        (6.0, "and room on it and within quotas"),
        (4.0, "a larger quota of project default, and room on it"),
    ):
        quotas = () if quota is None else (Quota("default", cpu=quota, may_borrow=False),)
        cpu = 5.0 if quota is None else 8.0
        first, *_ = tried(waits, trains, cpu=cpu, quotas=quotas, schedulable=False)
        assert first == f"{opened}, {beside}"


@pytest.mark.parametrize(("stop_seconds", "kept"), [(1200.0, True), (0.1, False)])
def test_a_job_that_would_keep_its_size_with_more_room_is_told_why(stop_seconds: float, kept: bool) -> None:
    job = a_job("a", has=(1, 1), measured=samples(law(), [*ALL_SIZES, (1, 1)]))
    world = a_snapshot([replace(job, rescale_seconds=(stop_seconds,))], a_cluster(2.0))
    found = kept_on_larger_cluster(world, "a", lambda each: plan(each, policy_named("optimus")))
    assert plan(world, policy_named("optimus")).decisions[0].reason is Reason.CLUSTER_FULL
    assert (found is not None) == kept
    assert found is None or "the change is predicted to stop training" in found


def test_no_lack_of_room_is_told_where_another_size_has_room() -> None:
    """With its next size it would be faster for each task, but a smaller one that fits would not pay, either."""
    speed = law(compute=1.0, transfer=0.3, per_task=0.01)
    short, long = (
        a_job(
            name,
            has=(1, 1),
            spec=a_spec(maximum=(most, most), rule=ConvergenceRule(max_steps=steps)),
            measured=samples(speed, ALL_SIZES),
            allocated_at=NOW - 1000.0,
            rescale_seconds=(60.0,) * 3,
        )
        for name, most, steps in (("short", 4, 60), ("long", 1, 50_000))
    )
    decisions = plan(a_snapshot([short, long], a_cluster(5.0)), policy_named("optimus")).decisions
    (told,) = (each for each in decisions if each.job_id == "short")
    assert told.reason is Reason.NOT_WORTH_RESCALING
    assert "2 workers and 1 server would be" in told.message


def test_the_gain_of_the_last_task_is_told_where_another_size_takes_the_same_room() -> None:
    """6 workers and 2 servers instead of 7 and 1: the server's gain is what others compare theirs with."""
    spec = a_spec(maximum=(7, 2))
    speeds = samples(law(compute=4.0), [(1, 1), (2, 1), (2, 2), (4, 2), (7, 1), (6, 1)])
    world = a_snapshot([a_job("a", has=(7, 1), spec=spec, measured=speeds)], a_cluster(8.0))
    (decision,) = plan(world, OPTIMUS, PRICES).decisions
    assert pair(decision.allocation) == (6, 2)
    assert decision.gain is not None
    assert decision.gain > 0.0
