"""Whole rounds over many generated worlds: what every plan keeps to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_cluster, a_job, a_snapshot, a_spec, applied, law, samples

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    ConvergenceRule,
    Directive,
    Job,
    JobState,
    Node,
    Plan,
    Reason,
    Resources,
    Role,
    SetWanted,
    Snapshot,
    SpeedSample,
    StartTask,
    StopTask,
    Task,
    TaskPhase,
)
from optimus_scheduler.model.format import instant_words
from optimus_scheduler.place.place import task_slots
from optimus_scheduler.reconcile import Reconciler, Want
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

OPTIMUS = policy_named("optimus")
POLICIES = ["optimus", "optimus-paper", "fifo"]

# --- worlds ----------------------------------------------------------------------------------------------------------

specs = st.builds(
    lambda minimum, more, worker_cpu, server_cpu, memory, rule, priority: a_spec(
        minimum=minimum,
        maximum=(minimum[0] + more[0], minimum[1] + more[1]),
        worker_cpu=worker_cpu,
        server_cpu=server_cpu,
        memory_bytes=memory,
        rule=rule,
        priority=priority,
    ),
    minimum=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    more=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    worker_cpu=st.sampled_from([0.5, 1.0, 2.0]),
    server_cpu=st.sampled_from([0.5, 1.0]),
    memory=st.sampled_from([GIB // 2, 4 * GIB]),
    rule=st.sampled_from(
        [ConvergenceRule(max_steps=5000), ConvergenceRule(loss_decrease=0.02), ConvergenceRule(max_seconds=95)]
    ),
    priority=st.sampled_from([0.5, 1.0, 3.0]),
)

node_lists = st.lists(
    st.builds(
        lambda cpu, gib, schedulable: (Resources(cpu, gib * GIB), schedulable),
        st.sampled_from([1.0, 2.0, 4.0, 8.0]),
        st.sampled_from([2, 16]),
        st.sampled_from([True, True, True, False]),
    ),
    min_size=1,
    max_size=4,
).map(lambda drawn: tuple(Node(f"node-{i}", available, schedulable=on) for i, (available, on) in enumerate(drawn)))


@st.composite
def worlds(draw: st.DrawFn, policy: str) -> Snapshot:
    """A world with a past: a round on one cluster, then nodes, tasks and jobs change under it."""
    queued = [
        a_job(f"j{i}", spec=spec, submitted_at=NOW - draw(st.integers(0, 900)))
        for i, spec in enumerate(draw(st.lists(specs, max_size=5)))
    ]
    before = a_snapshot(queued, draw(node_lists))
    after = applied(before, plan(before, policy_named(policy)).actions)
    jobs = [draw(_aged(job)) for job in after.jobs]
    jobs += [a_job("late", spec=spec) for spec in draw(st.lists(specs, max_size=1))]
    tasks = tuple(draw(_as_observed(task)) for task in after.tasks)
    return Snapshot(NOW, draw(node_lists), tuple(jobs), tasks)


@st.composite
def _aged(draw: st.DrawFn, job: Job) -> Job:
    if job.allocation.is_empty:
        return job
    sizes = draw(st.sampled_from([(), ((1, 1),), ALL_SIZES]))
    here = (job.allocation.workers, job.allocation.servers)
    measured: tuple[SpeedSample, ...] = samples(law(), [*sizes, here] if sizes else [])
    steps = tuple(range(0, 1000, 25))
    return replace(
        job,
        state=draw(st.sampled_from([JobState.RUNNING, JobState.RUNNING, JobState.QUEUED])),
        started_at=NOW - draw(st.sampled_from([5.0, 100.0])),
        allocated_at=NOW - draw(st.sampled_from([0.0, 60.0])),
        step=draw(st.integers(0, 4999)),
        steps_per_epoch=draw(st.sampled_from([None, 50.0])),
        speed_samples=measured,
        loss_steps=tuple(map(float, steps)),
        losses=tuple(1.0 / (0.02 * k + 1) for k in steps),
        directive=draw(st.sampled_from([Directive.RUN] * 4 + [Directive.FINISH, Directive.CANCEL])),
    )


def _as_observed(task: Task) -> st.SearchStrategy[Task]:
    return st.sampled_from(
        [
            task,
            task,
            task,
            replace(task, phase=TaskPhase.STARTING),
            replace(task, phase=TaskPhase.EXITED, exit_code=1),
            replace(task, phase=TaskPhase.EXITED, exit_code=0),
        ]
    )


# --- what holds of every plan ----------------------------------------------------------------------------------------


def check_gangs(after: Snapshot) -> None:
    """Every job has exactly the tasks of its allocation, within its limits, never a worker without a server."""
    for job in after.jobs:
        assert {(placed.key.role, placed.key.rank) for placed in job.wanted_tasks} == set(task_slots(job.allocation))
        if not job.allocation.is_empty:
            assert job.spec.worker.minimum <= job.allocation.workers <= job.spec.worker.maximum
            assert job.spec.server.minimum <= job.allocation.servers <= job.spec.server.maximum


def check_capacity(before: Snapshot, after: Snapshot) -> None:
    """No node is given more than it has, and nothing new goes where nothing may be placed."""
    nodes = {node.name: node for node in after.nodes}
    used = {name: Resources() for name in nodes}
    known = {placed for job in before.jobs for placed in job.wanted_tasks}
    for job in after.jobs:
        for placed in job.wanted_tasks:
            demand = job.spec.worker if placed.key.role is Role.WORKER else job.spec.server
            used[placed.node] = used[placed.node] + demand.resources
            assert nodes[placed.node].schedulable or placed in known
    assert all(used[name].fits_in(node.capacity) for name, node in nodes.items())


def check_decisions(before: Snapshot, outcome: Plan, after: Snapshot) -> None:
    """One for each job, in order, saying what is done and why."""
    jobs, now = {job.id: job for job in before.jobs}, {job.id: job for job in after.jobs}
    assert [decision.job_id for decision in outcome.decisions] == sorted(jobs)
    for decision in outcome.decisions:
        assert decision.previous == jobs[decision.job_id].allocation
        assert decision.allocation == now[decision.job_id].allocation
        assert decision.message.endswith(".")
        assert decision.message[0].isupper()
        if decision.reason in (Reason.WAITING_FOR_RESOURCES, Reason.CANCELLING):
            assert decision.allocation == NOTHING


def check_actions(before: Snapshot, outcome: Plan) -> None:
    """Sets before stops before starts, each at most once; no name is used twice."""
    kinds = [(SetWanted, StopTask, StartTask).index(type(action)) for action in outcome.actions]
    assert kinds == sorted(kinds)
    seen = {task.key for task in before.tasks}
    starts = [action.task.key for action in outcome.actions if isinstance(action, StartTask)]
    assert not seen & set(starts)
    assert len(set(starts)) == len(starts)
    assert max(Counter(a.job_id for a in outcome.actions if isinstance(a, SetWanted)).values(), default=0) <= 1


def wants_of(snapshot: Snapshot) -> dict[str, Want]:
    return {
        job.id: Want(job.directive, job.allocation, {(p.key.role, p.key.rank): p.node for p in job.wanted_tasks})
        for job in snapshot.jobs
    }


@pytest.mark.parametrize("policy", POLICIES)
@hypothesis_settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_every_plan_is_sound(policy: str, data: st.DataObject) -> None:
    before = data.draw(worlds(policy))
    outcome = plan(before, policy_named(policy))
    after = applied(before, outcome.actions)
    check_gangs(after)
    check_capacity(before, after)
    check_decisions(before, outcome, after)
    check_actions(before, outcome)
    late = Reconciler().reconcile(after, wants_of(after), Settings())
    assert all(isinstance(action, StartTask) for action in late), "nothing is left but to start what waited for room"
    assert Reconciler().reconcile(applied(after, late), wants_of(after), Settings()) == (), (
        "nothing is left to do after that"
    )


@pytest.mark.parametrize("policy", POLICIES)
@hypothesis_settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_order_of_the_input_does_not_matter(policy: str, data: st.DataObject) -> None:
    world = data.draw(worlds(policy))
    shuffled = replace(
        world,
        nodes=tuple(data.draw(st.permutations(world.nodes))),
        jobs=tuple(data.draw(st.permutations(world.jobs))),
        tasks=tuple(data.draw(st.permutations(world.tasks))),
    )
    assert plan(shuffled, policy_named(policy)) == plan(world, policy_named(policy))


@hypothesis_settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_jobs_outside_the_cluster_change_nothing_for_the_others(data: st.DataObject) -> None:
    world = data.draw(worlds("optimus"))
    size = Allocation(data.draw(st.integers(1, 50)), 0)
    outside = replace(
        a_job("outside", spec=replace(data.draw(specs), tracked=True)),
        state=JobState.RUNNING,
        allocation=size,
        step=data.draw(st.integers(0, 10_000)),
        directive=data.draw(st.sampled_from([Directive.RUN, Directive.CANCEL])),
    )
    alone, together = plan(world, OPTIMUS), plan(replace(world, jobs=(*world.jobs, outside)), OPTIMUS)
    assert together.actions == alone.actions
    others = [decision for decision in together.decisions if decision.job_id != "outside"]
    assert [(each.job_id, each.allocation, each.reason) for each in others] == [
        (each.job_id, each.allocation, each.reason) for each in alone.decisions
    ]
    (decision,) = [each for each in together.decisions if each.job_id == "outside"]
    assert (decision.reason, decision.allocation, decision.previous) == (Reason.TRACKED, size, size)


# --- single rounds ---------------------------------------------------------------------------------------------------


def test_the_steps_can_be_timed() -> None:
    seen: list[str] = []

    @contextmanager
    def timer(step: str) -> Iterator[None]:
        seen.append(step)
        yield

    plan(a_snapshot([a_job("a")], a_cluster(8)), OPTIMUS, timer=timer)
    assert list(dict.fromkeys(seen)) == ["forecast", "allocate", "place", "reconcile"]


def test_a_shell_that_shows_no_sentences_gets_the_same_decisions_without_them() -> None:
    jobs = [a_job(name, has=(2, 1), measured=samples(law(), ALL_SIZES), step=2_000) for name in ("a", "b")]
    snapshot = a_snapshot([*jobs, a_job("c")], a_cluster(2))
    told, untold = (plan(snapshot, policy_named("optimus"), worded=worded) for worded in (True, False))
    assert all(decision.message for decision in told.decisions)
    assert untold.decisions == tuple(decision._replace(message="") for decision in told.decisions)
    assert untold.actions == told.actions


def test_an_empty_world_needs_nothing() -> None:
    assert plan(a_snapshot([], ()), OPTIMUS) == Plan((), ())


def test_a_job_that_lost_its_nodes_is_paused() -> None:
    outcome = plan(a_snapshot([a_job("a", has=(1, 1))], ()), OPTIMUS)
    assert SetWanted("a", NOTHING, Directive.PAUSE, ()) in outcome.actions
    assert outcome.decisions[0].reason is Reason.NO_FEASIBLE_NODE
    assert outcome.decisions[0].message.startswith("Paused: no node that may be used can host")


def test_a_job_that_pauses_for_another_says_for_which() -> None:
    whole = a_spec(minimum=(2, 2), maximum=(2, 2))
    known = [
        ("default", "job urgent", 165.0),
        ("theirs", "a job of another project", 165.0),
        ("default", "job urgent", 170.0),
    ]
    for project, name, seconds in known:
        urgent = replace(whole, deadline_at=NOW + seconds, project=project)
        urgent = replace(urgent, convergence=ConvergenceRule(max_steps=200))
        has = a_job("has", has=(2, 2), spec=whole, measured=samples(law(), ALL_SIZES))
        new = a_job("urgent", spec=urgent, measured=samples(law(), ALL_SIZES))
        outcome = plan(a_snapshot([has, new], a_cluster(4)), OPTIMUS)
        told = {each.job_id: each for each in outcome.decisions}["has"]
        assert told.allocation.is_empty
        assert told.message.startswith(f"Paused by {name}, which has a deadline: ")
        (wanted,) = (each for each in outcome.actions if isinstance(each, SetWanted) and each.job_id == "has")
        assert wanted.paused_by == f"{name}, which has a deadline"
        later = replace(has, allocation=NOTHING, wanted_tasks=(), state=JobState.PAUSED, paused_by=wanted.paused_by)
        later = replace(later, allocated_at=NOW - 200.0)
        given = replace(has, state=JobState.PAUSED)  # given the room for a moment, in which it did not train
        (again,) = (
            each
            for each in plan(a_snapshot([given, new], a_cluster(4)), OPTIMUS).actions
            if isinstance(each, SetWanted) and each.job_id == "has"
        )
        assert again.paused_by == f"{name}, which has a deadline", "who took its tasks last, not who did before"
        having = replace(new, allocation=Allocation(2, 2), state=JobState.RUNNING, started_at=NOW)
        after = plan(a_snapshot([later, having], a_cluster(4)), OPTIMUS).decisions
        (waits,) = (each.message for each in after if each.job_id == "has")
        was = f"Paused at {instant_words(NOW - 200.0)} by {name}, for its deadline. Now there is no room for "
        assert waits == f"{was}2 workers and 2 servers beside jobs that train or go first."


def test_who_is_named_as_the_cause_of_a_pause_has_a_claim_to_the_room() -> None:
    """The hopeless job only fills what the urgent one leaves."""
    known = samples(law(), ALL_SIZES)
    soon = replace(a_spec(maximum=(1, 1), rule=ConvergenceRule(max_steps=200)), deadline_at=NOW + 260.0)
    jobs = [
        a_job("has", has=(2, 1), spec=a_spec(minimum=(2, 1), maximum=(2, 1)), measured=known),
        a_job("hopeless", spec=replace(soon, deadline_at=NOW), measured=known),
        a_job("urgent", spec=soon, measured=known),
    ]
    outcome = plan(a_snapshot(jobs, a_cluster(4)), OPTIMUS)
    told = {each.job_id: each for each in outcome.decisions}
    assert told["has"].allocation.is_empty
    assert not told["hopeless"].allocation.is_empty
    assert told["has"].message.startswith("Paused by job urgent, which has a deadline: ")


def test_a_paused_job_goes_on_when_there_is_room() -> None:
    job = a_job("a", state=JobState.PAUSED, directive=Directive.PAUSE, step=70, allocated_at=NOW - 30)
    outcome = plan(a_snapshot([job], a_cluster(4)), OPTIMUS)
    sets = [action for action in outcome.actions if isinstance(action, SetWanted)]
    assert [(action.allocation, action.directive) for action in sets] == [(Allocation(1, 1), Directive.RUN)]


def test_a_task_on_a_lost_node_moves() -> None:
    job = a_job("a", has=(1, 1), nodes={(Role.SERVER, 0): "node-0", (Role.WORKER, 0): "lost"})
    outcome = plan(a_snapshot([job], a_cluster(4)), OPTIMUS)
    started = [
        (a.task.key.role, a.task.key.incarnation, a.task.node) for a in outcome.actions if isinstance(a, StartTask)
    ]
    assert started == [(Role.WORKER, 1, "node-0")]


def test_a_converged_job_is_finished_with_what_it_has() -> None:
    spec = a_spec(rule=ConvergenceRule(max_seconds=60))
    job = a_job("a", has=(2, 1), spec=spec, measured=samples(law(), ALL_SIZES))
    outcome = plan(a_snapshot([job], a_cluster(8)), OPTIMUS)
    assert outcome.actions == (SetWanted("a", Allocation(2, 1), Directive.FINISH, job.wanted_tasks),)
    assert outcome.decisions[0].reason is Reason.LIMIT_REACHED


def test_a_job_too_big_for_any_node_is_told_so() -> None:
    job = a_job("a", spec=a_spec(worker_cpu=6.0))
    decision = plan(a_snapshot([job], a_cluster(4, 4)), OPTIMUS).decisions[0]
    assert decision.reason is Reason.NO_FEASIBLE_NODE
    assert decision.message == "Waits: no node that may be used can host 1 worker and 1 server, even when it is empty."


@pytest.mark.parametrize(("waited", "is_lent"), [(30.0, True), (40_000.0, False)])
def test_room_that_a_job_has_no_place_in_is_lent_until_its_turn_has_come(waited: float, is_lent: bool) -> None:
    small = [a_job(f"small-{i}", has=(1, 1), nodes=f"node-{i}", spec=a_spec(maximum=(1, 1))) for i in range(2)]
    large = a_job("large", spec=a_spec(worker_cpu=3.0, server_cpu=0.5, priority=50.0), submitted_at=NOW - waited)
    narrow = a_job("narrow", submitted_at=NOW - 10.0)
    decisions = plan(a_snapshot([*small, large, narrow], a_cluster(4, 4)), OPTIMUS).decisions
    waits = {each.job_id: each.reason for each in decisions if each.allocation.is_empty}
    assert waits.pop("large") is Reason.NO_FEASIBLE_NODE
    assert waits == ({} if is_lent else {"narrow": Reason.WAITING_FOR_RESOURCES})


def test_fragmentation_is_told_apart_from_scarcity() -> None:
    small = [a_job(f"small-{i}", has=(1, 1), nodes=f"node-{i}", spec=a_spec(maximum=(1, 1))) for i in range(2)]
    large = a_job("large", spec=a_spec(worker_cpu=3.0, server_cpu=0.5))
    decision = plan(a_snapshot([*small, large], a_cluster(4, 4)), OPTIMUS).decisions[0]
    assert (decision.job_id, decision.reason) == ("large", Reason.NO_FEASIBLE_NODE)


def in_pieces(**small: object) -> Snapshot:
    """Half of each of two nodes is free; the large job's worker needs more of one node."""
    spec = replace(a_spec(maximum=(1, 1)), deadline_at=small.pop("deadline_at", None))  # type: ignore[arg-type]
    settled: dict[str, object] = {"spec": spec, "allocated_at": NOW - 1000, "started_at": NOW - 1000, **small}
    jobs = [a_job(f"small-{i}", has=(1, 1), nodes=f"node-{i}", **settled) for i in range(2)]  # type: ignore[arg-type]
    return a_snapshot([*jobs, a_job("large", spec=a_spec(worker_cpu=3.0, server_cpu=0.5))], a_cluster(4, 4))


def test_a_job_moves_so_that_a_waiting_one_has_room() -> None:
    before = in_pieces()
    outcome = plan(before, OPTIMUS)
    large, stays, moves = sorted(outcome.decisions, key=lambda each: ("other nodes" in each.message, each.job_id))
    assert large.job_id == "large"
    assert {each.allocation for each in (large, stays, moves)} == {Allocation(1, 1)}
    assert moves.message.endswith("It moves to other nodes, so that job large has room.")
    after = applied(before, outcome.actions)
    nodes = {job.id: {placed.node for placed in job.wanted_tasks} for job in after.jobs}
    assert nodes["small-0"] == nodes["small-1"]
    check_capacity(before, after)
    assert not any("other nodes" in each.message for each in plan(after, OPTIMUS).decisions), "nobody moves back"


@pytest.mark.parametrize(
    "small",
    [
        pytest.param({"allocated_at": NOW - 90}, id="changed-a-moment-ago"),
        pytest.param({"unsaved_seconds": 600.0}, id="loses-work"),
        pytest.param({"deadline_at": NOW + 1e6}, id="has-a-deadline"),
        pytest.param({"rescale_seconds": (3e5,) * 8}, id="the-stop-takes-longer-than-what-is-left"),
    ],
)
def test_no_job_moves_that_should_not(small: dict[str, object]) -> None:
    decision = plan(in_pieces(**small), OPTIMUS).decisions[0]
    assert (decision.job_id, decision.reason) == ("large", Reason.NO_FEASIBLE_NODE)


def test_a_large_job_is_not_starved_by_a_stream_of_small_ones() -> None:
    """Two small jobs arrive in every round and run for four; the large one needs the whole cluster."""
    settings = Settings(patience_seconds=300.0)
    large = a_job("large", spec=a_spec(minimum=(4, 4)), submitted_at=NOW)
    snapshot = Snapshot(NOW, a_cluster(8), (large,), ())
    ends: dict[str, float] = {}
    for number in range(200):
        snapshot = replace(snapshot, now=NOW + 5.0 * number)
        arriving = [a_job(f"small-{number}-{i}", submitted_at=snapshot.now) for i in range(2)]
        jobs = [job for job in snapshot.jobs if ends.get(job.id, snapshot.now + 1) > snapshot.now]
        if number == 0:
            jobs = arriving  # they come first, so that the large one has to wait
        snapshot = replace(snapshot, jobs=(*jobs, *arriving) if number else (*jobs, large))
        alive = {job.id for job in snapshot.jobs}
        snapshot = replace(snapshot, tasks=tuple(task for task in snapshot.tasks if task.key.job_id in alive))
        snapshot = applied(snapshot, plan(snapshot, OPTIMUS, settings).actions)
        for job in snapshot.jobs:
            if not job.allocation.is_empty:
                ends.setdefault(job.id, snapshot.now + 20.0)
        if "large" in ends:
            waited = snapshot.now - NOW
            asked_to_wait = settings.patience_seconds + settings.patience_part * settings.typical_seconds
            assert waited <= asked_to_wait + 30.0
            return
    pytest.fail("the large job was never started")
