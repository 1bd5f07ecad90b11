"""The coordinator's decisions: what it does when tasks come, go, die, and when the service wants something else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workers.coordinator.group_world import GroupWorld, group_world
from tests.workers.coordinator.harness import (
    PROFILE,
    SlowWorld,
    World,
    make_world,
    running_world,
    take_over,
    wanted,
)

from optimus_contract.codec import read
from optimus_contract.job import ElasticBatch
from optimus_contract.membership import Limits
from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.coordinator.events import CheckpointRead, WantedArrived
from optimus_workers.coordinator.handlers.ending import CLOSING_SECONDS
from optimus_workers.coordinator.handlers.membership_change import (
    ARRIVAL_SECONDS,
    MAX_ATTEMPTS,
    REGROUP_RUNNING_SECONDS,
    REGROUP_SECONDS,
    STOPPING_SECONDS,
    WORKER_START_SECONDS,
)
from optimus_workers.coordinator.job_settings import JobSettings
from optimus_workers.coordinator.journal import Ended, Past, Profiled, replay
from optimus_workers.coordinator.state import Phase
from optimus_workers.coordinator.transitions import KINDS, TRANSITIONS, InvalidTransition
from optimus_workers.wire.messages import (
    Assume,
    Assumed,
    AssumeFailed,
    CommandStarted,
    DataLost,
    Done,
    Evaluate,
    Evaluated,
    Exit,
    Failed,
    Go,
    Halt,
    Halted,
    Hello,
    Join,
    Joined,
    Leave,
    Save,
    Saved,
    SaveFailed,
    SnapshotTaken,
)
from optimus_workers.wire.values import ShardFile

BEFORE_JOINING = (Phase.HALTING, Phase.RESTORING, Phase.ASSUMING)
ELASTIC = ElasticBatch(minimum=10, maximum=40, per_pass=10)
TRAINED = (Phase.TRAINING, Phase.SAVING, Phase.EVALUATING)


def phase_of(world: World) -> Phase:
    return world.state.phase


# --- forming ---------------------------------------------------------------------------------------------------------


def test_the_first_membership_starts_from_the_initial_parameters() -> None:
    world = running_world(workers=3, servers=2)
    assert world.last.cause == "start"
    assert world.last.pause_seconds is None
    assert (*world.last.workers, *world.last.servers) == ("worker-0", "worker-1", "worker-2", "server-0", "server-1")
    joins = [message for message in world.messages(Join) if isinstance(message, Join)]
    assert [join.brings_parameters for join in joins] == [True, False, False]
    assert [(join.first_slot, join.end_slot) for join in joins] == [(0, 1), (1, 2), (2, 4)]
    assumes = [message for message in world.messages(Assume) if isinstance(message, Assume)]
    assert [(a.first, a.end, a.sources) for a in assumes] == [(0, 160, ()), (160, 320, ())]
    assert {go.step for go in world.going.values()} == {0}
    assert world.manifests[0].version == 0, "the first version is saved before the first step"


@pytest.mark.parametrize("is_complete", [False, True])
def test_another_size_than_it_started_with_is_a_change(is_complete: bool) -> None:
    world = make_world()
    world.wants("worker-0", "worker-1", "server-0")
    world.arrives("server-0", "worker-0", *(["worker-1"] if is_complete else []))
    world.passes(ARRIVAL_SECONDS)
    world.wants("worker-0", "worker-1", "worker-2", "server-0")
    world.arrives("worker-2", *([] if is_complete else ["worker-1"]))
    world.step()
    assert list(world.last.workers) == ["worker-0", "worker-1", "worker-2"]
    assert [each.cause for each in world.reports] == ["start", "rescale"]


def test_it_does_not_wait_for_a_task_that_is_slow_to_start() -> None:
    world = make_world()
    world.wants("worker-0", "worker-1", "server-0")
    world.arrives("server-0", "worker-0")
    assert not world.reports
    world.passes(ARRIVAL_SECONDS)
    assert list(world.last.workers) == ["worker-0"]
    world.arrives("worker-1")
    world.step()
    assert list(world.last.workers) == ["worker-0", "worker-1"]
    assert world.last.cause == "start", "nobody has changed its size"
    assert world.last.step == 1
    assert world.last.lost_steps == 0


@pytest.mark.parametrize("past", ["none", "paused", "lost"])
def test_it_never_trains_with_fewer_than_its_owner_allows(past: str) -> None:
    world = make_world(least_workers=2, least_servers=1)
    names = ("worker-0", "worker-1", "server-0")
    world.wants(*names)
    if past != "none":
        world.arrives(*names)
        world.step()
    if past == "paused":
        world.wants(directive="pause")
        world.step()
        world = take_over(world)
        world.servers = {}
        names = ("worker-0-b", "worker-1-b", "server-0-b")
        world.wants(*names)
    n_reports = len(world.reports)
    if past == "lost":
        world.is_lost("worker-1")
    else:
        world.arrives("server-0" if past == "none" else "server-0-b", names[0])
    world.passes(100.0)
    assert len(world.reports) == n_reports, "one worker is not enough"
    world.arrives(names[1])
    world.step()
    assert [len(each.workers) for each in world.reports[n_reports:]] == [2]


def test_it_trains_with_fewer_once_its_owner_allows_it() -> None:
    world = make_world(least_workers=2)
    world.wants("worker-0", "worker-1", "server-0")
    world.arrives("worker-0", "worker-1", "server-0")
    world.step()
    world.wants("worker-0", "server-0")
    world.step()
    assert list(world.last.workers) == ["worker-0"]


def test_arrivals_that_come_together_are_one_change() -> None:
    world = running_world(workers=1)
    world.wants("worker-0", "worker-1", "worker-2", "worker-3", "server-0")
    world.arrives("worker-1")
    world.passes(ARRIVAL_SECONDS / 2)
    world.step()
    world.arrives("worker-2")
    world.step()
    assert len(world.reports) == 1
    world.passes(ARRIVAL_SECONDS)
    world.step()
    assert [len(report.workers) for report in world.reports] == [1, 3]


def test_servers_that_are_there_first_come_in_with_the_workers() -> None:
    world = running_world(workers=1)
    world.wants("worker-0", "worker-1", "server-0", "server-1")
    world.arrives("server-1")
    world.passes(WORKER_START_SECONDS / 2)
    world.step()
    assert len(world.reports) == 1, "training goes on meanwhile"
    world.arrives("worker-1")
    world.step()
    assert [(len(report.workers), len(report.servers)) for report in world.reports] == [(1, 1), (2, 2)]


def test_servers_wait_for_workers_only_so_long() -> None:
    world = running_world(workers=1)
    world.wants("worker-0", "worker-1", "server-0", "server-1")
    world.arrives("server-1")
    world.passes(WORKER_START_SECONDS)
    world.step()
    assert [len(report.servers) for report in world.reports] == [1, 2]


def test_nothing_starts_without_a_worker_and_a_server() -> None:
    world = make_world()
    world.wants("worker-0", "worker-1", "server-0")
    world.arrives("worker-0", "worker-1")
    world.passes(100)
    assert not world.reports
    world.arrives("server-0")
    assert world.reports


def test_leavers_go_at_the_step_boundary() -> None:
    world = running_world(workers=3, servers=2)
    world.wants("worker-0", "worker-2", "server-1")
    assert "worker-1" in world.connected, "in the middle of a step nobody goes"
    world.step()
    assert world.last.workers == ("worker-0", "worker-2")
    assert world.last.servers == ("server-1",)
    assert set(world.connected) == {"worker-0", "worker-2", "server-1"}
    assert world.last.pause_seconds == pytest.approx(0.0)
    assert {go.step for go in world.going.values()} == {1}


def test_a_server_that_goes_is_kept_until_its_range_has_moved() -> None:
    world = running_world(workers=1, servers=2)
    world.sent.clear()
    world.wants("worker-0", "server-1")
    world.step()
    kinds = [(name, type(message)) for name, message in world.sent]
    assert kinds.index(("server-1", Assume)) < kinds.index(("server-0", Exit))
    (assume,) = (message for message in world.messages(Assume) if isinstance(message, Assume))
    assert [(s.task, s.first, s.end, s.version) for s in assume.sources] == [
        ("server-0", 0, 160, 1), ("server-1", 160, 320, 1),
    ]  # fmt: skip


def test_a_moved_task_works_on_until_its_replacement_is_there() -> None:
    world = running_world(workers=1)
    world.wants("worker-0-b", "server-0")
    world.step()
    assert world.last.workers == ("worker-0",)
    world.arrives("worker-0-b")
    world.step()
    assert world.last.workers == ("worker-0-b",)
    assert "worker-0" not in world.connected


def test_a_task_that_nobody_wants_is_let_go_once_the_service_says_so() -> None:
    world = running_world()
    newest = world.state.wanted
    assert newest is not None
    world.passes(1.0)
    world.arrives("worker-9")
    world.passes(600.0)
    assert "worker-9" in world.connected, "the wanted set that it belongs to may be on its way"
    world.happens(WantedArrived(newest))
    world.passes(1.0)
    assert "worker-9" not in world.connected


def test_the_service_is_asked_at_once_about_a_task_that_was_left_out_while_it_was_starting() -> None:
    """It held the place of another job's task until the end of the poll, 25 s later."""
    world = running_world(workers=1)
    world.wants("server-0", "worker-0", "worker-1")
    world.wants("server-0", "worker-0")
    world.passes(1.0)
    assert world.asked == 0
    world.arrives("worker-1")
    assert world.asked == 1
    newest = world.state.wanted
    assert newest is not None
    world.happens(WantedArrived(newest))
    assert "worker-1" not in world.connected, "not even at the next step boundary"
    world.step()
    assert (world.state.epoch, world.last.workers, world.state.version) == (1, ("worker-0",), 1)


def test_nobody_is_asked_about_tasks_that_are_wanted() -> None:
    world = running_world(workers=1)
    world.wants("server-0", "worker-0", "worker-1")
    world.arrives("worker-1")
    assert world.asked == 0


def test_a_worker_that_is_left_out_does_not_wait_for_those_that_it_came_before() -> None:
    world = make_world()
    world.wants("server-0", "worker-0", "worker-1")
    world.arrives("server-0", "worker-1")
    world.wants("server-0", "worker-0")
    assert "worker-1" not in world.connected
    assert "server-0" in world.connected
    world.arrives("worker-0")
    assert world.last.workers == ("worker-0",)


def test_what_has_the_state_is_not_left_out_before_others_have_it() -> None:
    """After the death of a coordinator, the next one gathers those that trained."""
    world = running_world(workers=1)
    world.step()
    successor = take_over(world)
    successor.wants("server-1", "worker-1")
    successor.arrives("server-0", "worker-0")
    newest = successor.state.wanted
    assert newest is not None
    successor.happens(WantedArrived(newest))
    assert {"server-0", "worker-0"} <= successor.connected.keys()
    successor.arrives("server-1", "worker-1")
    assert (successor.last.workers, successor.last.step) == (("worker-1",), 1)


def test_an_older_wanted_set_changes_nothing() -> None:
    world = running_world(workers=2)
    newest = world.state.wanted
    assert newest is not None
    world.happens(WantedArrived(wanted(newest.generation - 1, directive="cancel")))
    assert world.state.wanted is newest


# --- losses ----------------------------------------------------------------------------------------------------------


def test_a_lost_worker_in_the_middle_of_a_step_costs_nothing() -> None:
    world = running_world(workers=3)
    for _ in range(4):
        world.step()
    world.step(only=["worker-0"])
    world.is_lost("worker-1")
    assert world.last.cause == "worker_lost"
    assert world.last.workers == ("worker-0", "worker-2")
    assert (world.last.step, world.last.lost_steps) == (4, 0)
    assert {go.step for go in world.going.values()} == {4}, "the step is repeated by the others"


def test_a_step_that_all_servers_have_applied_is_not_repeated() -> None:
    world = running_world(workers=2, servers=2)
    world.step()
    for server in world.servers.values():
        server.previous, server.version = 1, 2
    world.is_lost("worker-1")
    assert world.last.step == 2
    assert world.last.lost_steps == 0


def test_servers_one_step_apart_go_back_to_the_older_version() -> None:
    world = running_world(workers=2, servers=2)
    world.step()
    world.servers["server-0"].previous, world.servers["server-0"].version = 1, 2
    world.is_lost("worker-1")
    assert world.last.step == 1


def test_a_lost_server_costs_the_steps_since_the_checkpoint() -> None:
    world = running_world(workers=1, servers=2, checkpoint_seconds=0.35)
    for _ in range(6):
        world.step()
    newest = world.manifests[-1].version
    assert 0 < newest < 6
    world.is_lost("server-1")
    assert world.last.cause == "server_lost"
    assert world.last.servers == ("server-0",)
    assert world.last.step == newest
    assert world.last.lost_steps == 6 - newest
    (assume,) = (m for m in world.messages(Assume)[-1:] if isinstance(m, Assume))
    assert all(source.file is not None for source in assume.sources)


def test_checkpoints_that_cannot_be_read_end_the_job_rather_than_begin_it_anew() -> None:
    world = running_world(workers=1, servers=2, checkpoint_seconds=0.35)
    for _ in range(6):
        world.step()
    world.storage_error = "503 slow down"
    world.is_lost("server-1")
    assert world.result is not None
    assert (world.result.outcome, world.result.error) == ("failed", "the checkpoints cannot be read: 503 slow down")
    assert world.result.checkpoint is not None, "what there is, is told"


ORIGIN = Manifest(40, 3, PROFILE, (ShardFile(0, 160, "a", 1, ""), ShardFile(160, 320, "b", 1, "")))


def test_a_job_starts_at_step_0_with_the_parameters_of_another_ones_checkpoint() -> None:
    world = make_world()
    # Another batch, other data: the parameters are what counts.
    world.origin = replace(ORIGIN, profile=replace(PROFILE, global_batch_size=50, n_examples=7))
    world.wants("worker-0", "server-0")
    world.arrives("server-0", "worker-0")
    assert world.last.step == 0
    (assume,) = (m for m in world.messages(Assume) if isinstance(m, Assume))
    assert [(source.file, source.version, source.is_origin) for source in assume.sources] == [
        ("a", 0, True),
        ("b", 0, True),
    ]
    assert not any(m.brings_parameters for m in world.messages(Join) if isinstance(m, Join))
    assert world.manifests[0].version == 0, "its own checkpoint is there before its first step"
    world.step()
    world.is_lost("server-0")
    world.wants("worker-0", "server-1")
    world.arrives("server-1")
    later = [m for m in world.messages(Assume)[1:] if isinstance(m, Assume)]
    assert later
    assert not any(source.is_origin for assume in later for source in assume.sources)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_parameters": 301}, "its model has 301 parameters, this task's has 300"),
        (
            {"total_floats": 336},
            "its model keeps 304 floats of parameters and 32 of buffers, this task's keeps 304 and",
        ),
    ],
)
def test_a_job_cannot_start_from_parameters_of_another_model(change: dict[str, Any], words: str) -> None:
    world = make_world()
    world.origin = replace(ORIGIN, profile=replace(PROFILE, **change))
    world.wants("worker-0", "server-0")
    world.arrives("server-0", "worker-0")
    world.passes(CLOSING_SECONDS)
    assert world.result is not None
    assert world.result.error is not None
    assert "the job cannot start from origin/manifest: " + words in world.result.error
    assert world.result.permanent


def test_the_only_server_is_waited_for() -> None:
    world = running_world(workers=1, servers=1)
    world.step()
    world.is_lost("server-0")
    world.passes(30)
    assert len(world.reports) == 1
    world.wants("worker-0", "server-0-b")
    world.arrives("server-0-b")
    assert world.last.cause == "server_lost"
    assert world.last.step == 0
    assert world.last.lost_steps == 1


def test_loss_of_a_member_while_forming_forms_anew() -> None:
    world = running_world(workers=1)
    world.wants("worker-0", "worker-1", "server-0")
    world.mute.add("worker-1")  # it never joins
    world.arrives("worker-1")
    world.step()
    assert phase_of(world) is Phase.JOINING
    world.mute.clear()
    world.is_lost("worker-1")
    assert world.last.workers == ("worker-0",)
    assert world.state.phase is Phase.TRAINING


def test_what_a_server_held_before_a_rollback_is_not_used() -> None:
    world = running_world(workers=1, servers=2)
    for _ in range(3):
        world.step()
    zombie = world.servers["server-1"]
    world.is_lost("server-1")
    assert world.last.step == 0
    for _ in range(2):
        world.step()
    world.servers["server-1"] = zombie  # back from a stopped process, with version 3 of the history given up
    world.arrives("server-1")
    world.step()
    assert world.last.servers == ("server-0", "server-1")
    assert world.last.step == 3
    assumes = [message for message in world.messages(Assume)[-2:] if isinstance(message, Assume)]
    assert {source.task for assume in assumes for source in assume.sources} == {"server-0"}


def test_a_broken_data_connection_between_living_tasks_forms_anew() -> None:
    world = running_world()
    world.says("worker-0", DataLost(world.state.epoch, "reset"))
    world.passes(2)
    assert len(world.reports) == 2
    assert world.last.lost_steps == 0


def test_messages_of_an_epoch_that_is_over_are_ignored() -> None:
    world = running_world(workers=2)
    old = world.state.epoch
    world.is_lost("worker-1")
    version = world.state.version
    world.says("worker-0", Done(old, 0, 1.0, 5))
    assert world.state.version == version
    assert world.going


def test_attempts_are_bounded() -> None:
    world = make_world()
    world.wants("worker-0", "server-0")
    world.mute.add("server-0")
    world.arrives("worker-0", "server-0")
    for _ in range(MAX_ATTEMPTS):
        world.state.change.present.awaiting.clear()
        world.passes(0)
        world.says("server-0", AssumeFailed(world.state.epoch, "no route"))
        world.passes(2)
    world.passes(CLOSING_SECONDS + 1)
    assert world.result is not None
    assert world.result.outcome == "failed"
    assert "no route" in str(world.result.error)


# --- the end ---------------------------------------------------------------------------------------------------------


def limits(**values: float) -> Limits:
    return read(Limits, values)


def make_step(world: World) -> None:
    if isinstance(world, GroupWorld):
        world.steps()
    else:
        world.step()


KINDS_OF_JOBS = [(running_world, {}), (running_world, {"is_async": True}), (group_world, {})]


@pytest.mark.parametrize(("make", "settings"), KINDS_OF_JOBS)
@pytest.mark.parametrize(
    ("before", "after", "last"),
    [
        ({"max_steps": 4}, limits(max_steps=9), 9),
        ({"max_steps": 9}, limits(max_steps=5), 5),
        ({}, limits(max_steps=7), 7),
        ({"max_epochs": 0.4}, limits(max_epochs=0.6), 6),
        ({"max_steps": 4, "max_epochs": 0.8}, limits(max_epochs=0.8), 8),
    ],
)
def test_a_job_ends_at_the_step_of_a_limit_that_is_changed_meanwhile(
    make: Callable[..., World], settings: dict[str, Any], before: dict[str, Any], after: Limits, last: int
) -> None:
    world = make(2, **settings, **before)
    while world.state.version < 2:
        make_step(world)
    names = world.state.wanted_tasks
    world.wants(*names, limits=after)
    n_memberships = len(world.reports)
    for _ in range(20):
        if world.going:
            make_step(world)
    assert world.result is not None
    assert (world.result.outcome, world.result.step) == ("succeeded", last)
    assert len(world.reports) == n_memberships, "nothing stands still for it"


@pytest.mark.parametrize(("make", "settings"), KINDS_OF_JOBS)
def test_a_limit_below_what_is_trained_ends_the_job_after_the_steps_at_hand(
    make: Callable[..., World], settings: dict[str, Any]
) -> None:
    world = make(2, **settings)
    for _ in range(3):
        make_step(world)
    step, at_hand = world.state.version, len({go.step for go in world.going.values()})
    world.wants(*world.state.wanted_tasks, limits=limits(max_steps=1))
    assert world.result is None
    make_step(world)
    assert world.result is not None
    assert (world.result.outcome, world.result.step) == ("succeeded", step + at_hand)


def test_a_limit_that_is_taken_away_ends_nothing() -> None:
    world = running_world(max_steps=3)
    world.wants(*world.state.wanted_tasks, limits=Limits())
    for _ in range(9):
        world.step()
    assert world.state.version == 9
    world.wants(*world.state.wanted_tasks)
    assert world.state.settings.max_steps is None, "a service of an earlier release tells none"


def test_a_limit_holds_after_a_change_of_the_membership_and_for_the_next_coordinator() -> None:
    world = running_world(workers=1, max_steps=3)
    world.wants("server-0", "worker-0", "worker-1", limits=limits(max_steps=6))
    world.arrives("worker-1")
    world.step()
    world.passes(ARRIVAL_SECONDS)
    world.step()
    assert world.last.workers == ("worker-0", "worker-1")
    successor = take_over(world, max_steps=3)
    successor.wants("server-0", "worker-0", "worker-1", limits=limits(max_steps=6))
    successor.arrives("server-0", "worker-0", "worker-1")
    while successor.going:
        successor.step()
    assert successor.result is not None
    assert successor.result.step == 6


def test_more_steps_are_made_though_the_last_checkpoint_is_being_written() -> None:
    world = running_world(max_steps=3)
    world.mute = {"server-0"}
    for _ in range(3):
        world.step()
    assert phase_of(world) is Phase.SAVING
    world.wants(*world.state.wanted_tasks, limits=limits(max_steps=5))
    world.mute = set()
    save = world.messages(Save)[-1]
    assert isinstance(save, Save)
    file = ShardFile(0, 320, "v3", 1, "")
    world.says("server-0", SnapshotTaken(save.epoch, save.version))
    world.says("server-0", Saved(save.epoch, save.version, file))
    while world.going:
        world.step()
    assert world.result is not None
    assert world.result.step == 5


@pytest.mark.parametrize(("more", "last"), [({"is_weak": True}, 12), ({"elastic": ELASTIC}, 12)])
def test_another_limit_counts_in_steps_of_the_base_batch(more: dict[str, Any], last: int) -> None:
    world = running_world(workers=2, max_steps=100, **more)
    for _ in range(2):
        world.step()
    world.wants(*world.state.wanted_tasks, limits=limits(max_steps=last))
    while world.going:
        world.step()
    assert world.result is not None
    assert world.result.step == last


@pytest.mark.parametrize(
    ("settings", "last"), [({"max_steps": 3}, 3), ({"max_epochs": 0.25}, 3), ({"max_epochs": 1.0}, 10)]
)
def test_limits_are_met_exactly(settings: dict[str, Any], last: int) -> None:
    world = running_world(**settings)
    for _ in range(last):
        assert world.result is None
        world.step()
    ended = Ended("succeeded", last, 1.0, {"accuracy": 0.5, "bad": None}, f"manifest-{last}", None, at=world.now)
    assert world.result == ended
    assert world.exit_code == 0
    assert not world.connected


def test_finish_saves_evaluates_and_reports() -> None:
    world = running_world()
    world.step()
    world.wants("worker-0", "worker-1", "server-0", directive="finish")
    assert world.result is None
    world.step()
    assert world.result is not None
    assert world.result.step == world.manifests[-1].version == 2
    assert [name for name, message in world.sent if isinstance(message, Evaluate)] == ["worker-0"]


def test_steps_that_are_lost_while_the_job_is_to_finish_are_made_again_first() -> None:
    """Else it would end with the parameters of an older checkpoint: those of step 0, at worst."""
    world = running_world(workers=1)
    for _ in range(5):
        world.step()
    world.wants("worker-0", "server-0", directive="finish")
    world.is_lost("server-0")
    world.wants("worker-0", "server-1", directive="finish")
    world.arrives("server-1")
    assert (world.last.step, world.last.lost_steps) == (0, 5)
    while world.result is None:
        assert world.state.version < 5
        world.step()
    assert (world.result.outcome, world.result.step, world.manifests[-1].version) == ("succeeded", 5, 5)


def test_a_new_coordinator_finishes_no_sooner_than_at_the_step_that_the_service_knows() -> None:
    """The whole job was killed in the moment in which it was to finish."""
    world = running_world(workers=1)
    for _ in range(5):
        world.step()
    successor = take_over(world)
    successor.servers = {}
    successor.wants("worker-0", "server-0", directive="finish", step=5)
    successor.passes(STOPPING_SECONDS + 1)
    assert successor.result is None, "its tasks are on their way"
    successor.arrives("server-0", "worker-0")
    assert successor.last.step == 0
    while successor.result is None:
        assert successor.state.version < 5
        successor.step()
    assert (successor.result.outcome, successor.result.step) == ("succeeded", 5)


def test_another_worker_evaluates_when_the_first_is_lost() -> None:
    world = running_world()
    world.mute.add("worker-0")
    world.wants("worker-0", "worker-1", "server-0", directive="finish")
    world.going.setdefault("worker-0", Go(world.state.epoch, 0))
    world.step()
    assert world.result is None
    world.is_lost("worker-0")
    assert world.result is not None
    assert world.result.outcome == "succeeded"


def test_finish_without_tasks_ends_with_the_last_checkpoint() -> None:
    world = running_world(workers=1)
    world.step()
    world.is_lost("worker-0")
    world.is_lost("server-0")
    world.wants(directive="finish")
    world.passes(STOPPING_SECONDS + 1)
    assert world.result is not None
    assert world.result.metrics == {}
    assert world.exit_code == 0


def test_pause_saves_and_lets_everybody_go_and_resume_goes_on_there() -> None:
    world = running_world(workers=2, servers=2)
    world.step()
    world.wants(directive="pause")
    world.step()
    assert world.last.cause == "pause"
    assert world.last.step == world.manifests[-1].version == 2
    assert world.result is None
    assert world.exit_code == 0

    resumed = take_over(world)
    resumed.servers = {}
    resumed.wants("worker-0-b", "server-0-b", "server-1-b", "server-2-b")
    resumed.arrives("worker-0-b", "server-0-b", "server-1-b", "server-2-b")
    assert resumed.last.cause == "resume"
    assert (resumed.last.step, resumed.last.lost_steps) == (2, 0)
    assert resumed.last.epoch > world.last.epoch
    assert {go.step for go in resumed.going.values()} == {2}


def test_pause_without_a_worker_saves_what_the_servers_hold() -> None:
    world = running_world(workers=1)
    world.step()
    world.step()
    world.is_lost("worker-0")
    world.wants(directive="pause")
    assert world.manifests[-1].version == 2
    assert world.last.cause == "pause"


@pytest.mark.parametrize("arrived", [(), ("server-0",), ("server-0", "worker-0")])
def test_a_job_that_is_paused_before_it_has_trained_holds_nothing(arrived: tuple[str, ...]) -> None:
    """Its worker was still starting when its tasks were taken back."""
    world = make_world()
    world.wants("server-0", "worker-0", "worker-1")
    world.arrives(*arrived)
    assert not any(each.cause == "pause" for each in world.reports)
    world.wants(directive="pause")
    world.passes(1.0)
    assert (world.last.cause, world.last.step, world.exit_code) == ("pause", 0, 0)
    assert not world.connected


def test_cancel_waits_for_nobody() -> None:
    world = running_world()
    world.wants(directive="cancel")
    assert not world.connected
    assert world.result is None
    assert world.exit_code == 0


def test_a_task_that_does_not_hang_up_does_not_keep_the_coordinator() -> None:
    world = running_world()
    world.mute.add("worker-0")
    world.wants(directive="cancel")
    assert world.exit_code is None
    world.passes(CLOSING_SECONDS + 1)
    assert world.exit_code == 0


def test_the_users_error_ends_the_job() -> None:
    world = running_world()
    world.says("worker-1", Failed("Traceback\nValueError: no"))
    assert world.result is not None
    assert (world.result.outcome, world.result.error) == ("failed", "Traceback\nValueError: no")
    assert world.exit_code == 3


@pytest.mark.parametrize("permanent", [False, True])
def test_an_error_of_the_specification_is_not_retried(permanent: bool) -> None:
    world = running_world()
    world.says("worker-1", Failed("it has no such metric", permanent=permanent))
    assert world.result is not None
    assert world.result.permanent is permanent


def test_a_loss_that_is_not_finite_is_no_final_loss() -> None:
    world = running_world(max_steps=1)
    world.loss = math.nan
    world.step()
    assert world.result is not None
    assert world.result.final_loss is None


# --- leaving and saving ----------------------------------------------------------------------------------------------


def test_sigterm_lets_a_worker_go_at_the_next_boundary() -> None:
    world = running_world(workers=2)
    world.says("worker-1", Leave())
    assert "worker-1" in world.connected
    world.step()
    assert "worker-1" not in world.connected
    assert world.last.workers == ("worker-0",)
    assert world.last.step == 1


def test_the_last_server_leaves_a_checkpoint_behind() -> None:
    world = running_world(workers=1)
    world.step()
    world.says("server-0", Leave())
    world.step()
    assert world.manifests[-1].version == 2
    assert "server-0" not in world.connected
    world.servers.clear()
    world.wants("worker-0", "server-0-b")
    world.arrives("server-0-b")
    assert (world.last.step, world.last.lost_steps) == (2, 0)


def test_checkpoints_are_taken_periodically_without_missing_a_step() -> None:
    world = running_world(checkpoint_seconds=1.0)
    for _ in range(20):
        world.step()
    versions = [manifest.version for manifest in world.manifests]
    assert versions == [0, 5, 10, 15, 20], "a step takes 0.2 s here"
    assert world.state.version == 20


def test_a_failed_periodic_checkpoint_is_tried_again_later() -> None:
    world = running_world(workers=1, checkpoint_seconds=1.0)
    world.mute.add("server-0")
    world.passes(2)
    world.step()
    assert phase_of(world) is Phase.SAVING
    world.says("server-0", SaveFailed(world.state.epoch, world.state.version, "disk full"))
    assert world.state.phase is Phase.TRAINING
    world.mute.clear()
    world.passes(1.1)
    world.step()
    assert world.manifests[-1].version == 2


def test_missing_checkpoints_are_told_now_and_then_and_when_they_are_back() -> None:
    world = running_world(workers=1, checkpoint_seconds=1.0)
    world.mute.add("server-0")
    for _ in range(5):
        world.passes(2)
        world.step()
        world.says("server-0", SaveFailed(world.state.epoch, world.state.version, "disk full"))
    assert [news.partition(":")[0] for news in world.news] == [
        "The checkpoint of step 1 could not be written",
        "The checkpoint of step 2 could not be written (2 times in a row)",
        "The checkpoint of step 4 could not be written (4 times in a row)",
    ]
    assert "server-0: disk full. Training goes on and tries again; the newest is of step 0" in world.news[0]
    world.mute.clear()
    world.passes(1.1)
    world.step()
    assert world.news[-1].startswith("Checkpoints are written again, as of step ")


# --- another coordinator ---------------------------------------------------------------------------------------------


def test_a_successor_regroups_at_the_newest_common_version() -> None:
    world = running_world(workers=2, servers=2)
    for _ in range(5):
        world.step()
    successor = take_over(world)
    successor.arrives("worker-0", "worker-1", "server-0")
    successor.passes(REGROUP_SECONDS / 2)
    assert [report.cause for report in successor.reports] == ["start"], "half of the state is with the other server"
    successor.arrives("server-1")
    successor.passes(ARRIVAL_SECONDS)
    assert successor.last.cause == "coordinator_restart"
    assert (successor.last.step, successor.last.lost_steps) == (5, 0)
    assert successor.last.workers == ("worker-0", "worker-1")
    assert successor.last.epoch > world.last.epoch


def test_a_successor_restores_when_a_server_does_not_come_back() -> None:
    world = running_world(workers=1, servers=2)
    for _ in range(5):
        world.step()
    del world.servers["server-1"]
    successor = take_over(world)
    successor.arrives("worker-0", "server-0")
    successor.passes(REGROUP_SECONDS + 1)
    assert successor.last.step == 0
    assert successor.last.servers == ("server-0",)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_successor_waits_longer_for_a_server_that_runs_as_the_service_says(comes_back: bool) -> None:
    world = running_world(workers=1, servers=2)
    for _ in range(5):
        world.step()
    successor = take_over(world)
    successor.wants("worker-0", "server-0", "server-1")
    successor.arrives("worker-0", "server-0")
    successor.passes(REGROUP_SECONDS + 1)
    assert len(successor.reports) == 1, "it has not given up the steps that server-1 has in memory"
    if comes_back:
        successor.arrives("server-1")
        assert (successor.last.step, successor.last.lost_steps) == (5, 0)
    else:
        successor.passes(REGROUP_RUNNING_SECONDS - REGROUP_SECONDS)
        assert (successor.last.step, successor.last.servers) == (0, ("server-0",))


def test_a_successor_repeats_what_the_service_may_not_know() -> None:
    world = running_world()
    world.step()
    successor = take_over(world)
    successor.passes(0)
    assert successor.reports == world.reports


def test_epochs_go_on_although_the_journal_is_lost() -> None:
    """The service takes a membership whose epoch it knows for a repetition: the job would seem to stand still."""
    world = running_world()
    for _ in range(3):
        world.step()
    known = world.last.epoch + 12
    names = ["server-0", "worker-0", "worker-1"]
    successor = World.of(world.state.settings, Past(), world.now)
    successor.servers = world.servers
    successor.happens(WantedArrived(wanted(5, *names, membership_epoch=known)))
    successor.arrives(*names)
    assert successor.last.epoch == known + 1
    assert successor.last.step == 3, "the servers still have it"
    successor.happens(WantedArrived(wanted(6, *names, membership_epoch=known)))
    assert successor.last.epoch == known + 1, "what the service has not been told of yet is no loss"


def test_epochs_go_on_after_those_that_tasks_know_of() -> None:
    """Backups of the journal and of the service's database were restored: nobody but the tasks knows any more."""
    world = running_world()
    n_records = len(world.journal)
    world.step()
    world.arrives("worker-2")
    world.wants("server-0", "worker-0", "worker-1", "worker-2")
    world.step()
    newest, step = world.last.epoch, world.state.version
    successor = RememberingWorld.of(world.state.settings, replay(world.journal[:n_records]), world.now)
    successor.servers = world.servers
    successor.knows = newest
    successor.happens(WantedArrived(wanted(5, "server-0", "worker-0", "worker-1", "worker-2", membership_epoch=1)))
    successor.arrives("server-0", "worker-0", "worker-1", "worker-2")
    assert (successor.last.epoch, successor.last.step) == (newest + 1, step)
    successor.step()
    assert successor.state.version == step + 1


class RememberingWorld(World):
    """Its tasks have heard of this membership epoch."""

    knows = 0

    def _hello(self, hello: Hello) -> Hello:
        return replace(hello, epoch=self.knows)


def test_a_membership_whose_number_the_service_knows_from_before_is_followed_by_another() -> None:
    """The journal is of a backup, and the service was away as its coordinator began. What would be told of that number
    would be taken for what is known, and does not count."""
    world = running_world()
    world.step()
    n_before = world.last.epoch
    names = ["server-0", "worker-0", "worker-1"]
    world.wants(*names, membership_epoch=n_before + 5)
    assert world.last.epoch == n_before + 6
    assert (world.last.step, world.last.lost_steps) == (1, 0)
    world.step()
    assert world.state.version == 2
    world.wants(*names, membership_epoch=n_before + 6)
    assert world.last.epoch == n_before + 6


def test_a_successor_of_one_that_was_done_only_tells_so() -> None:
    world = running_world(max_steps=1)
    world.step()
    successor = take_over(world)
    successor.arrives("worker-0")
    assert "worker-0" not in successor.connected
    successor.passes(10)
    assert successor.result == world.result
    assert successor.exit_code == 0


def test_a_task_that_changed_under_way_fails_the_job() -> None:
    other = replace(PROFILE, total_floats=640)
    world = make_world(Past(profile=other))
    world.wants("worker-0", "server-0")
    world.arrives("worker-0")
    assert world.result is not None
    assert "different task" in str(world.result.error)
    assert not [record for record in world.journal if isinstance(record, Profiled)]


# --- async -----------------------------------------------------------------------------------------------------------


def test_async_hands_out_each_step_once_and_no_more_than_the_limit() -> None:
    world = running_world(workers=3, is_async=True, max_steps=10)
    handed = []
    while world.result is None:
        name = min(world.going, key=lambda name: world.going[name].step)
        handed.append(world.going[name].step)
        go = world.going.pop(name)
        for server in world.servers.values():
            server.version += 1
        world.says(name, Done(go.epoch, go.step, 1.0, 10))
    assert handed == list(range(10))
    assert world.result.step == 10


def test_async_stands_still_for_a_change_only_until_everybody_is_done() -> None:
    world = running_world(workers=2, is_async=True)
    world.wants("worker-0", "server-0")
    go = world.going.pop("worker-0")
    world.servers["server-0"].version += 1
    world.says("worker-0", Done(go.epoch, go.step, 1.0, 10))
    assert "worker-0" not in world.going
    go = world.going.pop("worker-1")
    world.servers["server-0"].version += 1
    world.says("worker-1", Done(go.epoch, go.step, 1.0, 10))
    assert world.last.workers == ("worker-0",)
    assert world.last.step == 2
    assert world.going["worker-0"].step == 2


def test_async_goes_on_from_servers_that_applied_different_numbers_of_pushes() -> None:
    world = running_world(workers=2, servers=2, is_async=True)
    world.servers["server-0"].version, world.servers["server-1"].version = 7, 6
    world.is_lost("worker-1")
    assert world.last.step == 6
    assumes = [message for message in world.messages(Assume)[-2:] if isinstance(message, Assume)]
    assert [source.version for assume in assumes for source in assume.sources] == [7, 6]


# --- the table -------------------------------------------------------------------------------------------------------

IMPOSSIBLE = {
    (CheckpointRead, "it is asked for in RESTORING"): {Phase.HALTING, Phase.ASSUMING, Phase.JOINING, *TRAINED},
    (Assumed, "servers answer before workers join"): {Phase.HALTING, Phase.RESTORING, Phase.JOINING, *TRAINED},
    (AssumeFailed, "or they fail before"): {Phase.HALTING, Phase.RESTORING, Phase.JOINING, *TRAINED},
    (Joined, "workers join before they train"): {*BEFORE_JOINING, *TRAINED},
    (Done, "the barrier is quiet before anything but training"): {
        *BEFORE_JOINING,
        Phase.JOINING,
        Phase.SAVING,
        Phase.EVALUATING,
    },
    (SnapshotTaken, "members have something to save"): {*BEFORE_JOINING, Phase.JOINING},
    (Saved, "the same"): {*BEFORE_JOINING, Phase.JOINING},
    (SaveFailed, "the same"): {*BEFORE_JOINING, Phase.JOINING},
    (Evaluated, "evaluating is the last thing"): {*BEFORE_JOINING, Phase.JOINING, Phase.TRAINING, Phase.SAVING},
    (CommandStarted, "processes start after all have stopped"): {*BEFORE_JOINING, *TRAINED},
}
"""Events of the present membership epoch that no task and no storage can send in these phases."""


def test_every_other_event_has_a_row_in_every_phase() -> None:
    missing = {(phase, kind) for phase in Phase for kind in KINDS if (phase, kind) not in TRANSITIONS}
    assert missing == {(phase, kind) for (kind, _), phases in IMPOSSIBLE.items() for phase in phases}


def test_an_event_without_a_row_tells_the_story_and_changes_nothing() -> None:
    world = running_world(workers=1)
    world.step()
    before = (world.state.epoch, world.state.version, world.state.phase)
    with pytest.raises(InvalidTransition) as caught:
        world.says("worker-0", Joined(world.state.epoch))
    assert str(caught.value) == (
        "Joined of worker-0 has no rule in the phase training (epoch 1, step 1); what happened before: "
        "TaskArrived: gathering → halting; Halted: halting → restoring; CheckpointRead: restoring → assuming; "
        "Assumed: assuming → joining; Joined: joining → training → saving; SnapshotTaken: saving → training"
    )
    assert (world.state.epoch, world.state.version, world.state.phase) == before
    world.step()
    assert world.state.version == 2


def test_a_failure_that_comes_after_the_end_does_not_bring_the_job_back() -> None:
    world = make_world()
    world.mute.add("server-0")
    world.wants("worker-0", "server-0")
    world.arrives("worker-0", "server-0")
    world.says("server-0", Halted(world.state.epoch, ()))
    assert phase_of(world) is Phase.ASSUMING
    world.wants(directive="cancel")
    world.says("server-0", AssumeFailed(world.state.epoch, "no route"))
    assert phase_of(world) is Phase.CLOSING
    world.is_lost("server-0")
    assert world.exit_code == 0


# --- anything at any time --------------------------------------------------------------------------------------------

NAMES = ["worker-0", "worker-1", "worker-2", "server-0", "server-1"]
ACTIONS = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from(NAMES)),
    st.tuples(st.just("lose"), st.sampled_from(NAMES)),
    st.tuples(st.just("leave"), st.sampled_from(NAMES)),
    st.tuples(st.just("want"), st.sets(st.sampled_from(NAMES)).map(frozenset)),
    st.tuples(st.just("step"), st.none()),
    st.tuples(st.just("half"), st.none()),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 2.0, 20.0])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_whatever_happens_the_job_can_go_on(actions: list[tuple[str, object]], is_async: bool) -> None:
    """Safety throughout (see `World.check`), then liveness: with tasks there and time, it trains and finishes."""
    world = make_world(is_async=is_async, checkpoint_seconds=1.0)
    for kind, argument in actions:
        _act(world, kind, argument)
    world.wants(*NAMES)
    _all_come_back(world)
    world.passes(60)
    world.passes(60)
    assert world.state.phase is Phase.TRAINING
    before = world.state.version
    _step(world)
    assert world.state.version > before
    world.wants(*NAMES, directive="finish")
    _step(world)
    assert world.result is not None
    assert world.result.outcome == "succeeded"
    assert world.exit_code == 0
    steps = [(report.step, report.lost_steps) for report in world.reports]
    assert all(step >= 0 and lost >= 0 for step, lost in steps)


def _all_come_back(world: World) -> None:
    for name in NAMES:
        if name in world.connected:
            world.is_lost(name)  # and comes back as a new incarnation
        world.servers.pop(name, None)
        world.arrives(name)


def _act(world: World, kind: str, argument: object) -> None:
    match kind, argument:
        case "arrive", str(name) if name not in world.connected:
            world.servers.pop(name, None)
            world.arrives(name)
        case "lose", str(name) if name in world.connected:
            world.is_lost(name)
        case "leave", str(name) if name in world.connected:
            world.says(name, Leave())
        case "want", frozenset() as names:
            world.wants(*map(str, names))
        case "step", _:
            _step(world)
        case "half", _ if world.going and not world.state.settings.is_async:
            world.step(only=[min(world.going)])
        case "pass", float(seconds):
            world.passes(seconds)
        case _:
            pass


def _step(world: World) -> None:
    if not world.state.settings.is_async:
        world.step()
        return
    for name in sorted(world.going):
        go = world.going.pop(name, None)
        if go is None:
            continue
        for server in world.servers.values():
            if server.epoch == go.epoch:
                server.version += 1
        world.says(name, Done(go.epoch, go.step, 1.0, 10))


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.booleans(), st.randoms(use_true_random=False))
def test_answers_may_come_late_and_in_any_order(
    actions: list[tuple[str, object]], is_async: bool, chance: random.Random
) -> None:
    """No event is without a rule in the phase in which it comes, and the job can go on."""
    world = SlowWorld.of(JobSettings(is_async=is_async, checkpoint_seconds=1.0), Past(), 1000.0)
    world.wants(*NAMES)
    world.arrives(*NAMES)
    for kind, argument in actions:
        world.deliver(chance, chance.randrange(8))
        if kind == "want" and chance.random() < 0.2:
            world.wants(*NAMES, directive=chance.choice(("run", "pause", "finish", "cancel")))
        else:
            _act(world, kind, argument)
    world.deliver(chance)
    if world.state.directive == "run" and world.exit_code is None:
        world.wants(*NAMES)
        _all_come_back(world)
        for _ in range(3):
            world.deliver(chance)
            world.passes(60)
        world.deliver(chance)
        assert world.state.phase is Phase.TRAINING


def test_halts_reach_everybody_before_ranges_move() -> None:
    world = running_world(workers=2, servers=2)
    world.sent.clear()
    world.wants("worker-0", "server-0", "server-1")
    world.step()
    kinds = [type(message) for _, message in world.sent if not isinstance(message, Go)]
    last_halt = max(index for index, kind in enumerate(kinds) if kind is Halt)
    first_assume = min(index for index, kind in enumerate(kinds) if kind is Assume)
    assert last_halt < first_assume
