"""The coordinator of a script, whose processes start, save and end by themselves: which membership follows what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.workers.coordinator.harness import World

from optimus_contract.membership import Limits
from optimus_workers.coordinator.handlers.script import COMPLETE_SECONDS, END_SECONDS, FAILURE_SECONDS
from optimus_workers.coordinator.job_settings import JobSettings
from optimus_workers.coordinator.journal import Past, replay
from optimus_workers.wire.messages import (
    CommandEnded,
    CommandHung,
    CommandIdle,
    CommandQuiet,
    CommandStarted,
    CommandStopped,
    Done,
    FromTask,
    Hello,
    Limit,
    StartCommand,
    StopCommand,
    ToTask,
)
from optimus_workers.wire.values import PauseParts


@dataclass
class ScriptWorld(World):
    """Agents whose processes start and stop at once."""

    runs: dict[str, StartCommand] = field(default_factory=dict)
    """Worker → its processes that run."""
    finished: set[str] = field(default_factory=set)
    """Workers whose processes ended well by themselves, which their coordinator may not know yet."""
    version: int = 0
    hung: set[str] = field(default_factory=set)
    """Workers that were told that nobody gets any further."""
    pause: PauseParts = field(default_factory=PauseParts)
    trained_seconds: float = 0.0
    tells_size: bool = True
    """Agents are of this release."""
    slow: bool = False
    """Processes do not stop before the world says so."""

    @property
    def epoch(self) -> int:
        return self.last.epoch

    def ends(self, name: str, exit_code: int = 0, **more: Any) -> None:
        """The processes of a worker end by themselves."""
        order = self.runs.pop(name)
        if exit_code == 0 and more.get("counts", True):
            self.finished.add(name)
        self.says(name, CommandEnded(order.epoch, exit_code, **more))

    def is_idle(self, name: str, seconds: float, *, complete: bool = False) -> None:
        self.says(name, CommandIdle(self.epoch, seconds, 100.0, complete))

    def _hello(self, hello: Hello) -> Hello:
        run = self.runs.get(hello.task)
        if run is None:
            return hello
        known = replace(hello, version=self.version, running_epoch=run.epoch)
        return replace(known, running_workers=run.n_workers, epoch=run.epoch) if self.tells_size else known

    def comes_to(self, step: int) -> None:
        self.version = step
        self.says("worker-0", Done(self.epoch, step, 1.0, 1))

    def _work(self, name: str, message: ToTask) -> list[FromTask]:
        match message:
            case StopCommand() if self.slow and name in self.runs:
                self.going.pop(name, None)
                return []
            case StopCommand():
                self.runs.pop(name, None)
                self.going.pop(name, None)
                step = self.version if name == "worker-0" else None
                saved, stopped = self.pause.save_seconds, self.pause.stop_seconds
                known = step is not None and saved is not None and stopped is not None
                since = (saved or 0.0) + (stopped or 0.0) if known else 0.0
                return [CommandStopped(message.epoch, step, name in self.finished, since, saved if known else None)]
            case StartCommand():
                self.runs[name] = message
                self.finished.discard(name)
                if message.rank != 0:
                    return [CommandStarted(message.epoch)]
                loads, starts = self.pause.load_seconds, self.pause.start_seconds
                told_every = self.pause.told_every
                return [CommandStarted(message.epoch, self.version, loads, starts, self.trained_seconds, told_every)]
            case CommandHung():
                self.hung.add(name)
                return []
            case _:
                return super()._work(name, message)


def script_world(workers: int) -> ScriptWorld:
    """A script that trains."""
    world = ScriptWorld.of(JobSettings(checkpoint_seconds=1e9, is_script=True), Past(), 1000.0)
    names = [f"worker-{rank}" for rank in range(workers)]
    world.wants(*names)
    world.arrives(*names)
    assert set(world.runs) == set(names)
    world.comes_to(100)
    return world


def successor_of(world: ScriptWorld, n_records: int | None = None) -> ScriptWorld:
    """The coordinator dies; the next one reads its journal, or so much of it. The agents are still to dial again."""
    successor = ScriptWorld.of(world.state.settings, replay(world.journal[:n_records]), world.now)
    successor.journal, successor.runs, successor.version = world.journal, world.runs, world.version
    return successor


def test_a_new_coordinator_lets_the_processes_of_a_whole_membership_go_on() -> None:
    successor = successor_of(script_world(2))
    successor.version = 130
    successor.wants("worker-0", "worker-1")
    successor.arrives("worker-0", "worker-1")
    assert (successor.last.cause, successor.last.step, successor.last.lost_steps) == ("coordinator_restart", 130, 0)
    assert successor.last.pause_seconds == 0.0, "they never stopped"
    assert successor.messages(StopCommand) == []
    assert {order.keeps_processes for order in successor.runs.values()} == {True}
    successor.comes_to(140)
    successor.wants("worker-0")
    assert (successor.last.cause, successor.last.step) == ("rescale", 140)
    assert [name for name, message in successor.sent if isinstance(message, StopCommand)] == ["worker-0", "worker-1"]
    assert not successor.runs["worker-0"].keeps_processes


@pytest.mark.parametrize("journal", ["lost", "of one worker", "paused", "of the same workers"])
def test_processes_that_an_older_journal_does_not_know_go_on(journal: str) -> None:
    """A backup of it was restored, and maybe of the service's database: the next epoch is beyond all that ran."""
    world = script_world(1)
    if journal == "paused":
        world.wants(directive="pause")
        world = successor_of(world)
    if journal == "of the same workers":
        world.wants("worker-0", "worker-1")
        world.arrives("worker-1")
    n_records = 0 if journal == "lost" else len(world.journal)
    for names in (["worker-0"], ["worker-0", "worker-1"]):
        world.wants(*names)
        world.arrives(*names)
        world.passes(60.0)
    assert set(world.runs) == {"worker-0", "worker-1"}
    newest = world.epoch
    successor = successor_of(world, n_records)
    successor.version = 500
    successor.wants("worker-0", "worker-1", membership_epoch=1)
    successor.arrives("worker-0", "worker-1")
    successor.passes(60.0)
    told = successor.last
    assert (told.epoch, told.cause, told.step, told.lost_steps) == (newest + 1, "coordinator_restart", 500, 0)
    assert successor.messages(StopCommand) == []
    successor.comes_to(510)
    successor.wants("worker-0")
    assert (successor.last.epoch, successor.last.step) == (newest + 2, 510)


@pytest.mark.parametrize("why", ["another is missing", "its size is not told"])
def test_processes_of_a_later_membership_that_may_not_be_whole_are_stopped(why: str) -> None:
    world = script_world(1)
    n_records = len(world.journal)
    if why == "another is missing":
        world.wants("worker-0", "worker-1")
        world.arrives("worker-1")
    else:
        world.wants("worker-2")
        world.arrives("worker-2")
        world.wants("worker-0")
        world.arrives("worker-0")
    newest = world.epoch
    successor = successor_of(world, n_records)
    successor.tells_size = why == "another is missing"
    successor.wants("worker-0")
    successor.arrives("worker-0")
    assert len(successor.messages(StopCommand)) == 1
    assert successor.last.epoch == newest + 1


@pytest.mark.parametrize(("limit", "ends"), [(90, True), (100, True), (150, False)])
def test_a_script_is_asked_to_stop_at_another_limit(limit: int, ends: bool) -> None:
    world = script_world(2)
    world.sent.clear()
    world.wants("worker-0", "worker-1", limits=Limits(max_steps=limit))
    assert world.messages(Limit) == [Limit(limit)] * 2, "its processes may end at the very step"
    assert (world.result is not None) is ends
    if not ends:
        world.comes_to(149)
        assert world.messages(StopCommand) == []
        world.comes_to(150)
    assert world.result is not None
    assert (world.result.outcome, world.result.step) == ("succeeded", max(100, limit))


def test_a_script_trains_on_when_its_limit_is_raised_or_taken_away() -> None:
    world = script_world(1)
    world.sent.clear()
    for limit in (120, 200, None):
        world.wants("worker-0", limits=Limits(max_steps=limit))
    world.comes_to(300)
    assert world.messages(Limit) == [Limit(120), Limit(200), Limit(None)]
    assert (world.result, world.messages(StopCommand)) == (None, [])


def test_a_script_that_stops_at_its_limit_goes_on_when_that_is_raised_meanwhile() -> None:
    world = script_world(1)
    world.sent.clear()
    world.wants("worker-0", limits=Limits(max_steps=120))
    world.slow = True
    world.comes_to(120)
    world.wants("worker-0", limits=Limits(max_steps=200))
    world.slow = False
    (order,) = {each for each in world.messages(StopCommand) if isinstance(each, StopCommand)}
    world.runs.pop("worker-0")
    world.says("worker-0", CommandStopped(order.epoch, 120, finished=False))
    assert world.result is None
    assert world.runs["worker-0"].step == 120


def test_an_agent_that_comes_later_hears_of_the_limit_and_none_of_what_an_earlier_service_does_not_tell() -> None:
    world = script_world(1)
    assert world.messages(Limit) == []
    world.wants("worker-0", "worker-1", limits=Limits(max_steps=500))
    world.sent.clear()
    world.arrives("worker-1")
    assert [each for each in world.sent if isinstance(each[1], Limit)] == [("worker-1", Limit(500))]


@pytest.mark.parametrize("first", ["start", "resume", "coordinator_restart"])
def test_tasks_that_come_one_after_the_other_are_no_change_of_size(first: str) -> None:
    world = ScriptWorld.of(JobSettings(checkpoint_seconds=1e9, is_script=True), Past(), 1000.0)
    if first != "start":
        before = script_world(2)
        if first == "resume":
            before.wants(directive="pause")
        world = successor_of(before)
        world.runs = {}
    world.wants("worker-2", "worker-3")
    world.arrives("worker-2")
    world.passes(60.0)
    world.arrives("worker-3")
    world.wants("worker-2")
    told = [(each.cause, len(each.workers)) for each in world.reports[-3:]]
    assert told == [(first, 1), ("start", 2), ("rescale", 1)]


@pytest.mark.parametrize("change", ["one runs no more", "another size", "pause"])
def test_otherwise_it_stops_them_all_and_starts_new_ones(change: str) -> None:
    successor = successor_of(script_world(2))
    if change == "one runs no more":
        del successor.runs["worker-1"]
    names = ["worker-0"] if change == "another size" else ["worker-0", "worker-1"]
    successor.wants(*names, directive="pause" if change == "pause" else "run")
    successor.arrives("worker-0", "worker-1")
    assert len(successor.messages(StopCommand)) == 2
    assert not any(order.keeps_processes for order in successor.runs.values())
    assert successor.last.workers == (() if change == "pause" else tuple(names))


def test_the_job_ends_when_the_processes_of_all_workers_have_ended() -> None:
    world = script_world(2)
    world.ends("worker-1")
    assert world.result is None
    world.ends("worker-0", metrics={"accuracy": 0.9})
    assert world.result is not None
    assert (world.result.outcome, world.result.metrics) == ("succeeded", {"accuracy": 0.9})


def test_a_job_that_is_about_to_end_is_not_started_again_at_another_size() -> None:
    world = script_world(2)
    world.ends("worker-1")
    world.wants("worker-0")
    assert world.epoch == 1
    world.ends("worker-0")
    assert world.result is not None
    assert world.result.outcome == "succeeded"


def test_processes_that_do_nothing_after_the_end_are_not_waited_for() -> None:
    world = script_world(3)
    world.ends("worker-0", metrics={"accuracy": 0.9})
    world.ends("worker-1")
    world.is_idle("worker-2", END_SECONDS - 1)
    assert world.result is None
    world.is_idle("worker-2", 0)
    world.is_idle("worker-2", END_SECONDS)
    assert world.result is not None
    assert (world.result.outcome, world.result.metrics) == ("succeeded", {"accuracy": 0.9})
    assert world.news == [
        f"The training is over; processes that did nothing for {END_SECONDS:.0f} s after it and did not end by "
        "themselves were ended: those of worker-2."
    ]


def test_those_that_still_do_something_are_waited_for() -> None:
    world = script_world(3)
    world.ends("worker-0")
    world.is_idle("worker-1", 10 * END_SECONDS)
    assert world.result is None
    world.ends("worker-2")
    world.is_idle("worker-1", 11 * END_SECONDS)
    assert world.result is not None


def test_the_first_worker_has_longer_after_its_last_step() -> None:
    world = script_world(2)
    world.ends("worker-1")
    world.is_idle("worker-0", COMPLETE_SECONDS - 1, complete=True)
    assert world.result is None
    world.is_idle("worker-0", COMPLETE_SECONDS, complete=True)
    assert world.result is not None
    assert world.result.outcome == "succeeded"


def test_a_script_hangs_when_no_worker_does_anything() -> None:
    world = script_world(2)
    world.is_idle("worker-0", 200.0)
    assert not world.hung
    world.is_idle("worker-1", 99.0)
    assert not world.hung
    world.is_idle("worker-1", 100.0)
    assert world.hung == {"worker-0"}
    assert world.result is None
    world.is_lost("worker-0")
    assert (world.epoch, world.runs["worker-1"].n_workers) == (2, 1)
    world.is_idle("worker-1", 99.0)
    assert world.hung == {"worker-0"}


@pytest.mark.parametrize("order", [("worker-0", "worker-1"), ("worker-1", "worker-0")])
def test_processes_that_went_on_from_the_wrong_step_end_nothing(order: tuple[str, ...]) -> None:
    """Only the first worker, whose steps are read, knows that they did."""
    world = script_world(2)
    for name in order:
        world.ends(name, counts=name != "worker-0")
    world.passes(60.0)
    assert world.result is None
    world.wants("worker-0")
    assert (world.epoch, set(world.runs)) == (2, {"worker-0"})
    assert world.runs["worker-0"].step == 100
    world.ends("worker-0")
    assert world.result is not None
    assert world.result.outcome == "succeeded"


def test_the_parts_of_a_pause_are_those_of_the_worker_that_knows_the_steps() -> None:
    world = script_world(1)
    assert (world.last.pause_seconds, world.last.pause_parts) == (None, None), "nothing had trained"
    world.pause = PauseParts(0.5, 0.25, 2.0, 1.0)
    world.wants("worker-0", "worker-1")
    world.arrives("worker-1")
    assert world.last.pause_parts == world.pause


def test_what_a_script_trained_without_telling_is_lost_and_is_no_standstill() -> None:
    world = script_world(1)
    world.slow = True
    world.wants("worker-0", "worker-1")
    world.arrives("worker-1")
    world.passes(5.0)
    assert "worker-0" in world.runs
    world.pause, world.trained_seconds, world.version = PauseParts(start_seconds=0.5, told_every=5), 0.25, 95
    world.runs.pop("worker-0")
    epoch = world.state.epoch
    world.says("worker-0", CommandStopped(epoch, 100, since_step=2.0, save_seconds=0.0, untold_steps=3))
    assert (world.last.epoch, world.last.step) == (epoch, 95)
    assert world.last.lost_steps == 8, "5 that were told, 3 that were not"
    assert world.last.at == world.now - 0.25, "it has trained since then"
    assert world.last.pause_seconds == pytest.approx(1.75)
    assert world.last.pause_parts == PauseParts(0.0, 2.0, 0.5, None, 5)


def test_a_job_that_waits_for_its_size_can_be_paused() -> None:
    world = script_world(2)
    world.ends("worker-1")
    world.ends("worker-0", counts=False)
    world.wants(directive="pause")
    assert (world.last.cause, world.result) == ("pause", None)


def test_a_failure_that_a_lost_worker_explains_does_not_fail_the_job() -> None:
    world = script_world(2)
    world.ends("worker-0", 1, error="connection reset")
    world.is_lost("worker-1")
    world.passes(FAILURE_SECONDS + 1)
    assert world.result is None


def test_a_failure_by_itself_fails_the_job() -> None:
    world = script_world(2)
    world.ends("worker-0", 1, error="no such column")
    world.passes(FAILURE_SECONDS + 1)
    assert world.result is not None
    assert (world.result.outcome, world.result.error) == ("failed", "no such column")


def test_a_worker_that_does_not_answer_is_told_of_until_it_does() -> None:
    world = script_world(2)
    world.is_silent("worker-0")
    assert world.news == [
        "worker-0 has not answered for 30 s: its process is stopped, or its machine stands still or cannot be reached. "
        "The others go on without it, until it answers or another takes its place. The processes of its script end "
        "soon after its last sign of life; what they have saved counts."
    ]
    assert (set(world.runs) - {"worker-0"}, world.last.workers) == ({"worker-1"}, ("worker-1",))
    assert (world.last.cause, world.last.message) == ("worker_lost", "worker-0 did not answer")
    world.arrives("worker-0")
    assert world.news[1:] == ["worker-0 answers again, and takes part from the next change of the membership on."]
    assert world.last.workers == ("worker-0", "worker-1")
    world.is_lost("worker-0")
    world.arrives("worker-0")
    assert len(world.news) == 2, "a connection that broke is no silence"


def test_without_its_only_worker_a_job_stands_still() -> None:
    world = script_world(1)
    world.is_silent("worker-0")
    assert "Training stands still, until it answers" in world.news[0]


def _told(world: ScriptWorld, name: str) -> list[StopCommand]:
    return [message for to, message in world.sent if to == name and isinstance(message, StopCommand)]


def test_processes_are_terminated_once_none_of_any_worker_writes() -> None:
    """One that waits for another, which saves, writes nothing either: its end would break the checkpoint."""
    world = script_world(3)
    world.slow = True
    world.wants("worker-0", "worker-1")
    epoch = world.state.epoch
    world.says("worker-1", CommandQuiet(epoch, True, False))
    world.says("worker-2", CommandQuiet(epoch, True, False))
    assert not any(stop.all_quiet for name in world.runs for stop in _told(world, name)), "the first one saves"
    world.says("worker-2", CommandQuiet(epoch, False, False))
    world.says("worker-0", CommandQuiet(epoch, True, False))
    assert not any(stop.all_quiet for name in world.runs for stop in _told(world, name)), "now the third one does"
    world.slow = False
    world.says("worker-2", CommandStopped(epoch))
    assert [_told(world, name)[-1].all_quiet for name in ("worker-0", "worker-1")] == [True, True]


def test_where_one_looks_whether_it_should_stop_all_have_the_time() -> None:
    world = script_world(2)
    world.slow = True
    world.wants("worker-0")
    world.says("worker-1", CommandQuiet(world.state.epoch, True, False))
    world.says("worker-0", CommandQuiet(world.state.epoch, True, True))
    for name in ("worker-0", "worker-1"):
        assert (_told(world, name)[-1].is_asked, _told(world, name)[-1].all_quiet) == (True, False)
