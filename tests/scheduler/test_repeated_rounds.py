"""A shell that remembers gets the plan that it would get anyway."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from benchmarks.decide import as_the_service_reads
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, NOW, a_cluster, a_job, a_snapshot, a_spec, applied, law, place, samples

from optimus_models.calibration import NO_EXPERIENCE, Errors, Experience, Judged
from optimus_scheduler import round as cycle
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.allocate.staying import CurrentSlots
from optimus_scheduler.forecast.end import Ends
from optimus_scheduler.forecast.fits import Fits
from optimus_scheduler.forecast.forecast import RememberingForecaster
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    Job,
    Node,
    Resources,
    Snapshot,
    TaskDemand,
    TaskPhase,
)
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.place.place import Placed, Placer, Request, TaskSlot
from optimus_scheduler.retries import Retry
from optimus_scheduler.settings import Settings

OPTIMUS = policy_named("optimus")
RACKS = {"topology.kubernetes.io/rack": "r"}


def newcomer(name: str, most: int, cpu: float) -> Job:
    rule = ConvergenceRule(max_steps=10_000, max_seconds=300.0 if most % 3 == 0 else None)
    judged = Errors([Judged("before", "", 0.2, 0.3, 0.5), Judged("earlier", "", 0.5, 0.2, -0.4)])
    experience = Experience(seconds=judged, steps=judged) if most % 2 == 0 else NO_EXPERIENCE
    spec = a_spec(maximum=(most, most), worker_cpu=cpu, server_cpu=1.0, rule=rule)
    return replace(a_job(name, spec=spec, measured=samples(law(), ALL_SIZES)), experience=experience)


def a_ring(name: str, most: int) -> Job:
    """An all-reduce job that exchanges for half of each step: on several nodes, it moves together."""
    spec = replace(a_spec(maximum=(most, 1)), architecture=Architecture.ALLREDUCE, server=TaskDemand(Resources(), 0, 0))
    sizes = [(1, 0), (2, 0), (4, 0)]
    measured = samples(lambda workers, _: workers**0.9, sizes)
    told = tuple([replace(one, exchange_seconds=0.5 / one.steps_per_second) for one in measured])
    return replace(a_job(name, spec=spec, measured=told), rescale_seconds=(5.0,))


changes = st.lists(
    st.one_of(
        st.tuples(st.just("arrives"), st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0])),
        st.tuples(st.just("ring arrives"), st.integers(2, 4)),
        st.tuples(st.just("ends"), st.integers(0, 9)),
        st.tuples(st.just("cordons"), st.integers(0, 3)),
        st.tuples(st.just("empties"), st.integers(0, 3)),
        st.tuples(st.just("has cores"), st.integers(0, 3), st.sampled_from([2.0, 6.0, 12.0])),
        st.tuples(st.just("tells"), st.integers(0, 9), st.sampled_from([0.5, 1.1, 3.0])),
        st.tuples(st.just("trains"), st.integers(0, 9), st.integers(1, 10_000)),
        st.tuples(st.just("fails"), st.integers(0, 9)),
        st.tuples(st.just("stops"), st.integers(0, 9), st.sampled_from([5.0, 90.0])),
        st.tuples(st.just("is paused"), st.integers(0, 9)),
        st.tuples(st.just("measures what it has"), st.integers(0, 9), st.sampled_from([0.9, 1.2])),
        st.tuples(st.just("has formed"), st.integers(0, 9), st.sampled_from([0, 1])),
        st.tuples(st.just("was paused by"), st.integers(0, 9), st.sampled_from([None, "job x", "another job"])),
        st.tuples(st.just("waits to try again"), st.integers(0, 9), st.sampled_from(["no such file", "out of memory"])),
        st.tuples(st.just("nothing")),
    ),
    min_size=1,
    max_size=6,
)


def as_read_anew(snapshot: Snapshot) -> Snapshot:
    """An equal snapshot that shares no object with this one."""
    anew: Snapshot = _anew(snapshot)
    return anew


def _anew(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = map(_anew, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, Mapping):
        return {key: _anew(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _anew(getattr(value, each.name)) for each in fields(value) if each.init})
    return value  # a word or a number


@pytest.mark.parametrize(
    "read",
    [as_read_anew, as_the_service_reads, lambda snapshot: snapshot],
    ids=["new-objects", "as-the-service", "same-objects"],
)
@settings(max_examples=30, deadline=None)
@given(happened=changes, price=st.sampled_from([0.0, 0.2]))
def test_every_round_is_what_it_would_be_without_memory(
    read: Callable[[Snapshot], Snapshot], happened: list[tuple[object, ...]], price: float
) -> None:
    fits, ends, constants = Fits(), Ends(), Settings(price_per_core_hour=price)
    memory, forecaster = cycle.RoundMemory(), RememberingForecaster(fits, ends)
    snapshot = a_snapshot([newcomer("first", 4, 1.0)], a_cluster(4, 6, 3, 8))
    for number, change in enumerate(happened):
        snapshot = read(replace(_after(snapshot, number, change), now=NOW + 60.0 * number))
        worded = number % 3 != 2
        remembered = cycle.plan(snapshot, OPTIMUS, constants, memory=memory, forecaster=forecaster, worded=worded)
        assert remembered == cycle.plan(snapshot, OPTIMUS, constants, worded=worded)
        # A dry run, which shares what rounds know of jobs, by settings of its own that are equal.
        more, equal = replace(snapshot, jobs=(*snapshot.jobs, newcomer("dry-run", 3, 1.0))), replace(constants)
        dry_run = cycle.plan(more, OPTIMUS, equal, forecaster=RememberingForecaster(fits, ends))
        assert dry_run == cycle.plan(more, OPTIMUS, equal)
        snapshot = applied(snapshot, remembered.actions)


def _after(snapshot: Snapshot, number: int, change: tuple[object, ...]) -> Snapshot:
    match change:
        case ("arrives", int(most), float(cpu)):
            return replace(snapshot, jobs=(*snapshot.jobs, newcomer(f"job-{number}", most, cpu)))
        case ("ring arrives", int(most)):
            return replace(snapshot, jobs=(*snapshot.jobs, a_ring(f"job-{number}", most)))
        case ("ends", int(index)) if snapshot.jobs:
            gone = snapshot.jobs[index % len(snapshot.jobs)].id
            jobs = tuple(job for job in snapshot.jobs if job.id != gone)
            return replace(snapshot, jobs=jobs, tasks=tuple(t for t in snapshot.tasks if t.key.job_id != gone))
        case ("tells", int(index), float(factor)) if snapshot.jobs:
            return _with_job(snapshot, index, lambda job: _faster(job, factor, NOW + 60.0 * number))
        case ("trains", int(index), int(steps)) if snapshot.jobs:
            return _with_job(snapshot, index, lambda job: replace(job, step=job.step + steps))
        case ("fails", int(index)) if snapshot.tasks:
            tasks = list(snapshot.tasks)
            tasks[index % len(tasks)] = replace(tasks[index % len(tasks)], phase=TaskPhase.EXITED, exit_code=1)
            return replace(snapshot, tasks=tuple(tasks))
        case ("stops", int(index), float(seconds)) if snapshot.jobs:
            return _with_job(snapshot, index, lambda job: replace(job, rescale_seconds=(*job.rescale_seconds, seconds)))
        case ("is paused", int(index)) if snapshot.jobs:
            return _with_job(snapshot, index, lambda job: replace(job, owner_paused=not job.owner_paused))
        case ("measures what it has", int(index), float(factor)) if snapshot.jobs:
            return _with_job(snapshot, index, lambda job: _measured(job, factor, NOW + 60.0 * number))
        case ("has formed", int(index), int(fewer)) if snapshot.jobs:
            return _with_job(snapshot, index, lambda job: replace(job, formed=_smaller(job.allocation, fewer)))
        case ("was paused by", int(index), str() | None as by) if snapshot.jobs:
            return _with_job(snapshot, index, lambda job: replace(job, paused_by=by))
        case ("waits to try again", int(index), str(error)) if snapshot.jobs:
            retry = Retry(1, 3, NOW + 60.0 * number + 90.0, 120.0, error)
            return _with_job(snapshot, index, lambda job: replace(job, retry=retry))
        case ("cordons", int(index)):
            return _with_node(snapshot, index, lambda node: replace(node, schedulable=not node.schedulable))
        case ("empties", int(index)):
            return _with_node(snapshot, index, lambda node: replace(node, schedulable=False, emptied=True))
        case ("has cores", int(index), float(cores)):
            return _with_node(snapshot, index, lambda node: replace(node, capacity=Resources(cores, 2**36)))
    return snapshot


def _with_job(snapshot: Snapshot, index: int, changed: Callable[[Job], Job]) -> Snapshot:
    jobs = list(snapshot.jobs)
    jobs[index % len(jobs)] = changed(jobs[index % len(jobs)])
    return replace(snapshot, jobs=tuple(jobs))


def _faster(job: Job, factor: float, at: float) -> Job:
    """It has measured again what it had measured last."""
    *others, newest = job.speed_samples
    reported = replace(newest, steps_per_second=newest.steps_per_second * factor, at=at)
    return replace(job, speed_samples=(*others, reported))


def _measured(job: Job, factor: float, at: float) -> Job:
    """It has trained for long with what it has."""
    size, newest = job.allocation, job.speed_samples[-1]
    if size.is_empty:
        return job
    speed = factor * newest.steps_per_second
    told = replace(newest, workers=size.workers, servers=size.servers, steps_per_second=speed, n_steps=500, at=at)
    return replace(job, speed_samples=(*job.speed_samples, told))


def _smaller(size: Allocation, fewer: int) -> Allocation:
    return size._replace(workers=max(size.workers - fewer, 0))


def _with_node(snapshot: Snapshot, index: int, changed: object) -> Snapshot:
    assert callable(changed)
    nodes: list[Node] = list(snapshot.nodes)
    nodes[index] = changed(nodes[index])
    return replace(snapshot, nodes=tuple(nodes))


requests = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 6), st.integers(0, 4), st.sampled_from([0.1, 1.0, 2.5])),
    max_size=8,
    unique_by=lambda drawn: drawn[0],
)


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(requests, min_size=2, max_size=4), racks=st.booleans())
def test_a_placer_gives_what_place_gives(rounds: list[list[tuple[int, int, int, float]]], racks: bool) -> None:
    """Jobs come, go and change their sizes and needs; what was placed is held in the next round."""
    nodes = tuple(
        Node(f"n{i}", Resources(float(cpu)), labels={"rack": str(i // 2)} if racks else {})
        for i, cpu in enumerate((3, 5, 4, 6, 2))
    )
    placer = Placer()
    held: dict[str, Mapping[TaskSlot, str]] = {}
    for drawn in rounds:
        wanted = [
            Request(
                f"job-{number}",
                Resources(cpu),
                Resources(1.0 if servers else 0.0),
                Allocation(workers, servers),
                Allocation(1, min(servers, 1)),
                held.get(f"job-{number}", {}),
            )
            for number, workers, servers, cpu in drawn
        ]
        remembered = placer.place(wanted, nodes, spread_least_transfer)
        assert remembered == place(wanted, nodes, spread_least_transfer)
        held = {job_id: placed.nodes for job_id, placed in remembered.items() if isinstance(placed, Placed)}


def test_workers_stay_on_cordoned_nodes_only_while_they_live() -> None:
    job, gone = a_job("a", has=(2, 1)), a_job("b", has=(1, 1), nodes="no-such-node")
    snapshot = a_snapshot([job, gone], a_cluster(4))
    everywhere = {(task.key.role, task.key.rank): "node-0" for task in job.wanted_tasks}
    assert CurrentSlots().of(snapshot) == {"a": everywhere, "b": {}}
    cordoned = _with_node(snapshot, 0, lambda node: replace(node, schedulable=False))
    assert CurrentSlots().of(cordoned) == {"a": everywhere, "b": {}}
    assert CurrentSlots().of(replace(cordoned, tasks=())) == {"a": {}, "b": {}}


def test_500_equal_rounds_of_new_objects_take_no_more_memory_and_no_more_work() -> None:
    """As in the service: it reads its database and its cluster anew in every round."""
    memory, forecaster = cycle.RoundMemory(), RememberingForecaster()
    snapshot = replace(a_snapshot([newcomer(f"job-{i}", 4, 1.0) for i in range(8)], a_cluster(*(8,) * 6)), now=NOW)
    for _ in range(3):
        plan = cycle.plan(as_read_anew(snapshot), OPTIMUS, memory=memory, forecaster=forecaster)
        snapshot = applied(snapshot, plan.actions)
    blocks: list[int] = []
    calls: list[int] = []
    for number in range(501):
        anew = as_read_anew(snapshot)
        measured = number in (100, 500)
        with _counted(calls) if measured else nullcontext():
            assert cycle.plan(anew, OPTIMUS, memory=memory, forecaster=forecaster).actions == plan.actions
        if measured:
            gc.collect()
            blocks.append(sys.getallocatedblocks())  # each object has one; following each allocation takes long
    assert calls[1] == calls[0]
    one_object_for_each_job_and_round = 400 * 8
    assert blocks[1] < blocks[0] + 0.5 * one_object_for_each_job_and_round, blocks


@contextmanager
def _counted(calls: list[int]) -> Iterator[None]:
    """Appends how many functions, of Python and of C, are called inside."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # as in a shell; what is called when it collects is no work of a round
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()
        calls.append(count)
