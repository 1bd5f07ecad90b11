"""Scattered all-reduce jobs move onto fewer nodes where there is room, if what they exchange is worth a stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.builders import NOW, a_cluster, a_job, a_snapshot, a_spec

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.gather import Gathered, WithoutRoom, _fewest, gather
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    Directive,
    Job,
    Node,
    Resources,
    Role,
    SetWanted,
    SpeedSample,
    TaskDemand,
)
from optimus_scheduler.reconcile import Want
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

SETTINGS = Settings()
CORE = Resources(1.0, 2**30)


def ring(nodes: list[str], exchange: float = 0.5, steps: int = 100_000, name: str = "a") -> Job:
    """A job of a step a second, of which `exchange` seconds are exchanged, with a worker on each of these nodes."""
    size, told = len(nodes), [1, 2, 4]
    spec = replace(
        a_spec(rule=ConvergenceRule(max_steps=steps)),
        architecture=Architecture.ALLREDUCE,
        worker=TaskDemand(CORE, size, size),
        server=TaskDemand(Resources(), 0, 0),
    )
    places = {(Role.WORKER, rank): node for rank, node in enumerate(nodes)}
    samples = tuple(SpeedSample(n, 0, 1.0, 100, at=NOW - 10.0, exchange_seconds=exchange) for n in {*told, size})
    made = a_job(name, has=(size, 0), nodes=places, spec=spec, allocated_at=NOW - 1000.0, rescale_seconds=(30.0,) * 4)
    return replace(made, speed_samples=samples)


def as_it_is(job: Job) -> Want:
    return Want(Directive.RUN, job.allocation, {(key.role, key.rank): node for key, node in job.wanted_tasks})


def gathered(job: Job, nodes: tuple[Node, ...]) -> tuple[list[str], Mapping[str, Gathered]]:
    """Where its workers are then."""
    want = as_it_is(job)
    outlooks = forecast_all([job], NOW, SETTINGS)
    wants, found = gather(a_snapshot([job], nodes), outlooks, {"a": want}, SETTINGS)
    assert wants["a"].nodes.keys() == want.nodes.keys()
    return [node for _, node in sorted(wants["a"].nodes.items())], found


def test_a_scattered_job_moves_to_the_node_that_holds_it() -> None:
    places, found = gathered(ring(["node-0", "node-1", "node-1", "node-2"]), a_cluster(2, 4, 4))
    assert places == ["node-1"] * 4
    assert found == {"a": Gathered(3, 1, 0.5)}


@pytest.mark.parametrize(
    ("job", "nodes"),
    [
        (ring(["node-0", "node-1"]), a_cluster(1, 1)),
        (ring(["node-0", "node-1", "node-2"]), a_cluster(1, 1, 1)),
        (ring(["node-0"]), a_cluster(1, 4)),
        (ring(["node-0", "node-1"], exchange=0.0), a_cluster(2, 2)),
        (ring(["node-0", "node-1"], steps=20), a_cluster(2, 2)),
        (replace(ring(["node-0", "node-1"]), allocated_at=NOW - 10.0), a_cluster(2, 2)),
        (replace(ring(["node-0", "node-1"]), unsaved_seconds=10.0), a_cluster(2, 2)),
    ],
    ids=["no room", "no room for three", "together", "nothing to save", "near its end", "just changed", "loses work"],
)
def test_it_stays_where_a_move_does_not_pay(job: Job, nodes: tuple[Node, ...]) -> None:
    assert gathered(job, nodes) == ([node for _, node in job.wanted_tasks], {})


def test_a_round_moves_it_and_says_why() -> None:
    job = ring(["node-0", "node-1"])
    made = plan(a_snapshot([job], a_cluster(2, 2)), policy_named("optimus"))
    (wanted,) = (action for action in made.actions if isinstance(action, SetWanted))
    assert len({placed.node for placed in wanted.tasks}) == 1
    (decision,) = made.decisions
    assert decision.allocation == job.allocation
    assert decision.message.endswith(
        "Its workers move together, from 2 nodes to 1: 50% of each step goes into what they exchange."
    )
    others = plan(a_snapshot([job], a_cluster(2, 2)), policy_named("srtf"))
    assert not [action for action in others.actions if isinstance(action, SetWanted)]


def test_fewer_racks_count_more_than_fewer_nodes() -> None:
    nodes = {f"{rack}{n}": Node(f"{rack}{n}", CORE * 2, labels={"rack": rack}) for rack in "ab" for n in range(2)}
    room = {"a0": CORE * 2, "a1": CORE * 2, "b0": CORE * 2, "b1": CORE}
    assert _fewest({"a0": 2, "b0": 2}, nodes, room, CORE) == {"a0": 2, "a1": 2}
    assert _fewest({"a0": 2, "a1": 2}, nodes, room, CORE) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from("ab")), min_size=1, max_size=6))
def test_all_tasks_find_room_on_no_more_nodes(drawn: list[tuple[int, int, str]]) -> None:
    nodes = {f"n{i}": Node(f"n{i}", CORE * 8, labels={"rack": rack}) for i, (_, _, rack) in enumerate(drawn)}
    here = {f"n{i}": has for i, (has, _, _) in enumerate(drawn) if has}
    room = {f"n{i}": CORE * (has + free) for i, (has, free, _) in enumerate(drawn)}
    found = _fewest(here, nodes, room, CORE)
    if found is not None:
        assert sum(found.values()) == sum(here.values())
        assert all((CORE * count).fits_in(room[name]) for name, count in found.items())

        def spread(counts: Mapping[str, int]) -> tuple[int, int]:
            return len({nodes[name].labels["rack"] for name in counts}), len(counts)

        assert spread(found) < spread(here)


places = st.lists(st.sampled_from(["node-0", "node-1"]), min_size=1, max_size=3)
rounds = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([(2, 4), (3, 3), (4, 4)])), min_size=2, max_size=8)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), places, min_size=1), min_size=2, max_size=2), rounds)
def test_who_had_no_room_has_none_until_something_changes(
    jobs_on: list[dict[str, list[str]]], drawn: list[tuple[int, tuple[int, int]]]
) -> None:
    without_room = WithoutRoom()
    for number, cores in drawn:
        jobs = [ring(nodes, name=name) for name, nodes in jobs_on[number].items()]
        snapshot, wants = a_snapshot(jobs, a_cluster(*cores)), {job.id: as_it_is(job) for job in jobs}
        outlooks = forecast_all(jobs, NOW, SETTINGS)
        anew = gather(snapshot, outlooks, wants, SETTINGS)
        assert gather(snapshot, outlooks, wants, SETTINGS, without_room) == anew
