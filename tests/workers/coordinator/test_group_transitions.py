"""The coordinator of an all-reduce job: who has the state, and that a step is done exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.coordinator.group_world import GroupWorld, group_world
from tests.workers.coordinator.harness import PROFILE

from optimus_workers.coordinator.handlers.membership_change import REGROUP_SECONDS
from optimus_workers.coordinator.journal import Profiled, replay
from optimus_workers.coordinator.state import Phase
from optimus_workers.wire.messages import Exit, Join, Leave, Publish, Published


def test_it_begins_with_the_initial_parameters_and_without_servers() -> None:
    world = group_world(3)
    assert (world.last.workers, world.last.servers) == (("worker-0", "worker-1", "worker-2"), ())
    joins = [world.joins[name] for name in world.last.workers]
    assert all(join.brings_parameters and join.group is not None and join.group.shares_state for join in joins)
    assert [(join.first_slot, join.end_slot) for join in joins] == [(0, 1), (1, 2), (2, 4)]
    assert world.manifests[0].version == 0
    assert world.manifests[0].is_whole, "each has written its part"


def test_joiners_get_the_state_from_one_that_has_it() -> None:
    world = group_world(1)
    world.steps(3)
    world.wants("worker-0", "worker-1", "worker-2")
    world.arrives("worker-1", "worker-2")
    world.steps()
    group = world.joins["worker-2"].group
    assert group is not None
    assert (group.root, group.shares_state, group.sources) == (0, True, ())
    assert (world.last.step, world.last.lost_steps, len(world.last.workers)) == (4, 0, 3)


def test_when_nobody_stays_one_hands_over_first() -> None:
    world = group_world(2)
    world.steps(2)
    world.wants("worker-8", "worker-9")
    world.arrives("worker-8", "worker-9")
    world.steps()
    assert [report.workers for report in world.reports[1:]] == [
        ("worker-8", "worker-9", "worker-0"),
        ("worker-8", "worker-9"),
    ]
    roots = [join.group.root for join in world.messages(Join) if isinstance(join, Join) and join.group is not None]
    assert roots == [0, 0, 2, 2, 2, 0, 0]
    assert not world.joins["worker-8"].group.shares_state, "all that are left have it"  # type: ignore[union-attr]
    assert "worker-0" not in world.connected
    assert (world.last.step, world.last.lost_steps) == (3, 0)


@pytest.mark.parametrize(("applied", "step", "shares"), [((), 2, False), (("worker-1",), 3, True)])
def test_a_step_cut_short_is_completed_or_repeated(applied: tuple[str, ...], step: int, shares: bool) -> None:
    world = group_world(3)
    world.steps(2)
    world.applies(applied)
    world.is_lost("worker-0")
    assert (world.last.cause, world.last.step, world.last.lost_steps) == ("worker_lost", step, 0)
    group = world.joins["worker-1"].group
    assert group is not None
    assert (group.root, group.shares_state) == (0, shares)
    assert {go.step for go in world.going.values()} == {step}


def test_when_all_die_it_goes_on_from_the_checkpoint() -> None:
    world = group_world(2, checkpoint_seconds=5.0)
    world.steps(2)
    world.passes(5.0)
    world.steps(3)
    saved = world.manifests[-1].version
    assert 0 < saved < 5
    for name in ("worker-0", "worker-1"):
        world.is_lost(name)
    assert world.state.phase is Phase.GATHERING
    world.arrives("worker-1")
    group = world.joins["worker-1"].group
    assert group is not None
    assert [(source.first, source.end) for source in group.sources] == [(0, 160), (160, PROFILE.total_floats)]
    assert (world.last.step, world.last.lost_steps) == (saved, 5 - saved)


def test_the_next_coordinator_waits_for_those_that_have_the_state() -> None:
    world = group_world(2)
    world.steps(2)
    world.applies(["worker-1"])
    successor = GroupWorld.of(world.state.settings, replay(world.journal), world.now)
    successor.states, successor.manifests, successor.journal = world.states, world.manifests, world.journal
    successor.wants("worker-0", "worker-1")
    successor.arrives("worker-0")
    assert successor.last.cause == "start", "told again; nothing new was formed"
    successor.arrives("worker-1")
    assert (successor.last.cause, successor.last.step, successor.last.lost_steps) == ("coordinator_restart", 3, 0)
    alone = GroupWorld.of(world.state.settings, replay(world.journal), world.now)
    alone.states, alone.manifests, alone.journal = {"worker-0": world.states["worker-0"]}, [], list(world.journal)
    alone.wants("worker-0", "worker-1")
    alone.arrives("worker-0")
    alone.passes(REGROUP_SECONDS)
    assert alone.last.workers == ("worker-0",)


def test_what_a_member_says_reaches_the_others_of_its_epoch() -> None:
    world = group_world(3)
    epoch = world.state.epoch
    world.says("worker-1", Publish(epoch, "listens", "00"))
    told = [(name, message) for name, message in world.sent if isinstance(message, Published)]
    assert told == [(name, Published(epoch, "listens", "00")) for name in ("worker-0", "worker-2")]
    world.says("worker-1", Publish(epoch - 1, "listens", "00"))
    assert len(world.messages(Published)) == 2


def test_a_worker_that_is_asked_to_leave_goes_at_the_boundary_with_a_checkpoint_if_it_was_the_last() -> None:
    world = group_world(1)
    world.steps(3)
    world.says("worker-0", Leave())
    assert "worker-0" in world.connected
    world.steps()
    assert world.manifests[-1].version == 4
    assert ("worker-0", Exit("no longer wanted")) in world.sent
    world.arrives("worker-0")
    assert (world.last.step, world.last.lost_steps) == (4, 0)


def test_pause_and_finish() -> None:
    world = group_world(2)
    world.steps(3)
    world.wants(directive="pause")
    world.steps()
    assert (world.last.cause, world.exit_code, world.manifests[-1].version) == ("pause", 0, 4)
    past = replay(world.journal)
    assert any(isinstance(record, Profiled) for record in world.journal)
    resumed = group_world(0, past)
    resumed.manifests, resumed.journal = world.manifests, world.journal
    resumed.wants("worker-5")
    resumed.arrives("worker-5")
    assert (resumed.last.cause, resumed.last.step, resumed.last.lost_steps) == ("resume", 4, 0)
    resumed.wants(directive="finish")
    resumed.steps()
    assert resumed.result is not None
    assert (resumed.result.outcome, resumed.result.step) == ("succeeded", 5)


NAMES = tuple(f"worker-{rank}" for rank in range(4))
EVENTS = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 3)),
    st.tuples(st.just("kill"), st.tuples(st.sampled_from(NAMES), st.booleans())),
    st.tuples(st.just("want"), st.lists(st.sampled_from(NAMES), min_size=1, unique=True)),
    st.tuples(st.just("pass"), st.floats(0.1, 20)),
)


@given(st.lists(EVENTS, max_size=25))
def test_no_step_is_lost_while_one_that_has_the_state_lives(events: list[tuple[str, object]]) -> None:
    world = group_world(2)
    for kind, value in events:
        holders, n_reports = _holders(world), len(world.reports)
        newest = max(holders.values(), default=0)
        match kind, value:
            case "step", int(n):
                world.steps(n)
            case "kill", (str(name), bool(has_applied)):
                _kill(world, name, has_applied)
            case "want", list(names):
                world.wants(*names)
                world.arrives(*(name for name in sorted(names) if name not in world.connected))
            case "pass", float(seconds):
                world.passes(seconds)
        if holders.keys() & world.connected.keys():
            assert max(_holders(world).values(), default=newest) >= newest
            assert all(report.lost_steps == 0 for report in world.reports[n_reports:])


def _holders(world: GroupWorld) -> dict[str, int]:
    """The members and the version that each has."""
    return {name: world.states[name].version for name in world.state.members.workers if name in world.states}


def _kill(world: GroupWorld, name: str, has_applied: bool) -> None:
    """One dies, when another one may have completed the step at hand already."""
    others = sorted(other for other in world.going if other != name)
    if has_applied and others and name in world.going:
        world.applies(others[:1])
    if name in world.connected:
        world.is_lost(name)
