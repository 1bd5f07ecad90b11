"""What a job's owner reads."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.scheduler.builders import ALL_SIZES, NOW, a_job, law, samples

from optimus_scheduler.allocate.policies import Grant
from optimus_scheduler.allocate.policy import OTHERS_GIVE
from optimus_scheduler.explain import decide
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import NOTHING, Allocation, Decision, Job, Reason
from optimus_scheduler.place.place import Placed, Unplaced, task_slots
from optimus_scheduler.reconcile import Want
from optimus_scheduler.retries import Retry
from optimus_scheduler.settings import Settings

RUNNING = a_job("a", has=(2, 1), measured=samples(law(), ALL_SIZES), step=9_800)
NEW = a_job("a", submitted_at=NOW - 30)


def placed(workers: int, servers: int) -> Placed:
    size = Allocation(workers, servers)
    return Placed(size, dict.fromkeys(task_slots(size), "node-0"))


def decision(job: Job, grant: Grant, where: Placed | Unplaced | None = None) -> Decision:
    if where is None and not grant.allocation.is_empty:
        where = placed(grant.allocation.workers, grant.allocation.servers)
    outlook, placements = forecast(job, NOW, Settings()), {} if where is None else {job.id: where}
    wants = {job.id: Want(job.directive, grant.allocation, {})}
    return decide([outlook], {job.id: grant}, placements, wants)[0]


@pytest.mark.parametrize(
    ("job", "grant", "message"),
    [
        (
            NEW,
            Grant(Allocation(1, 1), Reason.LEARNING_SPEED),
            "Starts with 1 worker and 1 server; whether it grows is decided once its speed is measured.",
        ),
        (
            NEW,
            Grant(NOTHING, Reason.WAITING_FOR_RESOURCES),
            "Waits: there is no room for 1 worker and 1 server beside jobs that train or go first.",
        ),
        (
            NEW,
            Grant(NOTHING, Reason.WAITING_FOR_RESOURCES, grown=("b", "c")),
            "Waits: other jobs make better use of the room that 1 worker and 1 server would need.",
        ),
        (
            NEW,
            Grant(NOTHING, Reason.WAITING_FOR_QUOTA, grown=("b", "c")),
            "Waits: jobs b and c of project default make better use of the room in its quota that 1 worker and 1 "
            "server would need.",
        ),
        (
            RUNNING,
            Grant(Allocation(4, 2), Reason.GRANTED_MORE),
            "Grows from 2 workers and 1 server to 4 workers and 2 servers: "
            "predicted N times as fast (N to N with 80 % probability).",
        ),
        (
            RUNNING,
            Grant(Allocation(2, 1), Reason.NOT_WORTH_RESCALING, ideal=Allocation(4, 2)),
            "Keeps 2 workers and 1 server: "
            "4 workers and 2 servers would be N times as fast (N to N with 80 % probability), "
            "but the change is predicted to stop training for about N s "
            "(assumed: no job that runs, nor one like them that succeeded, has measured one), "
            "too long for what it would save by its end or for how sure that is.",
        ),
        (
            RUNNING,
            Grant(Allocation(2, 1), Reason.NOT_WORTH_RESCALING, ideal=Allocation(4, 2), note=OTHERS_GIVE),
            "Keeps 2 workers and 1 server: "
            "4 workers and 2 servers would be N times as fast (N to N with 80 % probability), "
            "but the change is predicted to stop training for about N s "
            "(assumed: no job that runs, nor one like them that succeeded, has measured one), and other jobs would be "
            "slower: together that is too much for what it would save, or for how sure that is. "
            "Other jobs would have to give up the room for that.",
        ),
        (
            RUNNING,
            Grant(Allocation(1, 1), Reason.BETTER_USED_ELSEWHERE),
            "Shrinks from 2 workers and 1 server to 1 worker and 1 server, as other jobs need the room more: "
            "predicted N times as fast (N to N with 80 % probability).",
        ),
        (
            RUNNING,
            Grant(Allocation(2, 1), Reason.AT_MAXIMUM),
            "Gets all that its owner allows: 2 workers and 1 server.",
        ),
        (
            replace(RUNNING, spec=replace(RUNNING.spec, size_stays=True)),
            Grant(Allocation(2, 1), Reason.AT_MAXIMUM),
            "Has 2 workers and 1 server, and its size stays: "
            "it is not known to go on from checkpoints at another size.",
        ),
        (
            replace(RUNNING, formed=Allocation(1, 1)),
            Grant(Allocation(1, 1), Reason.BETTER_USED_ELSEWHERE),
            "Keeps 1 worker and 1 server, and the change to 2 workers and 1 server is taken back, "
            "as other jobs need the room more: its speed stays as it is.",
        ),
        (
            replace(RUNNING, formed=Allocation(1, 1)),
            Grant(Allocation(3, 1), Reason.LEARNING_SPEED),
            "Grows from 1 worker and 1 server to 3 workers and 1 server to learn how its speed grows: "
            "predicted N times as fast (N to N with 80 % probability).",
        ),
        (
            replace(RUNNING, formed=NOTHING, step=0),
            Grant(Allocation(1, 1), Reason.LEARNING_SPEED),
            "Starts with 1 worker and 1 server: "
            "predicted N times as fast (N to N with 80 % probability) as with 2 workers and 1 server.",
        ),
        (RUNNING, Grant(NOTHING, Reason.CANCELLING), "Cancelled: its tasks are being stopped."),
    ],
)
def test_sentences(job: Job, grant: Grant, message: str) -> None:
    """N stands for a predicted figure."""
    pattern = re.escape(message).replace("N", r"\d+(\.\d+)?")
    assert re.fullmatch(pattern, decision(job, grant).message)


def test_new_tasks_are_told_to_take_as_long_to_join_as_they_did() -> None:
    """The stop of training, which is told beside it, is a part of that."""
    job = replace(RUNNING, joining_seconds=(31.0, 30.0, 29.0), rescale_seconds=(20.0,) * 6)
    grant = Grant(Allocation(2, 1), Reason.NOT_WORTH_RESCALING, ideal=Allocation(4, 2))
    message = decision(job, grant).message
    assert "but new tasks take about 30 s to join, and within that the change is predicted to stop" in message


def test_a_predicted_ratio_is_as_wide_as_what_was_measured() -> None:
    """The true ratio is in it, also where the present size was never measured."""
    speed, widths = law(), []
    for sizes in ([(1, 1), (3, 3)], ALL_SIZES):
        job = replace(RUNNING, allocation=Allocation(2, 3), speed_samples=samples(speed, sizes))
        told = decision(job, Grant(Allocation(1, 1), Reason.MINIMUM_ELSEWHERE)).message
        found = re.search(r"predicted ([\d.]+) times as fast \(([\d.]+) to ([\d.]+) with 80 % probability[;)]", told)
        assert found is not None, told
        assert ("; its speeds are still being learned)" in told) == (len(sizes) == 2)
        mean, low, high = map(float, found.groups())
        assert low <= mean <= high
        assert low <= speed(1, 1) / speed(2, 3) <= high
        widths.append(high / low)
    assert widths[0] > widths[1]


def test_a_smaller_place_than_granted_is_explained() -> None:
    less = decision(RUNNING, Grant(Allocation(6, 6), Reason.GRANTED_MORE), placed(3, 1))
    assert (less.reason, less.allocation) == (Reason.GRANTED_MORE, Allocation(3, 1))
    none = decision(RUNNING, Grant(Allocation(6, 6), Reason.GRANTED_MORE), placed(2, 1))
    assert none.reason is Reason.NO_FEASIBLE_NODE
    assert none.message == ("Keeps 2 workers and 1 server: no node has room for the tasks of 6 workers and 6 servers.")


def test_no_place_at_all_is_explained() -> None:
    waits = decision(NEW, Grant(Allocation(1, 1), Reason.LEARNING_SPEED), Unplaced("all nodes are full"))
    assert (waits.reason, waits.allocation) == (Reason.NO_FEASIBLE_NODE, NOTHING)
    assert waits.message == "Waits: all nodes are full (1 worker and 1 server)."


WITHOUT_TASKS = (
    Reason.WAITING_FOR_RESOURCES,
    Reason.NO_FEASIBLE_NODE,
    Reason.CANCELLING,
    Reason.WAITING_FOR_RETRY,
)
FAILED_ONCE = replace(RUNNING, retry=Retry(1, 2, NOW + 30.0, 30.0, "OSError: stale file handle."))


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence(reason: Reason) -> None:
    sizes = [NOTHING] if reason in WITHOUT_TASKS else [Allocation(2, 1), Allocation(3, 3)]
    for size in sizes:
        message = decision(FAILED_ONCE, Grant(size, reason)).message
        assert message[0].isupper()
        assert message.endswith(".")


def test_a_size_that_the_job_had_before_is_measured_anew() -> None:
    before = replace(RUNNING, allocated_at=NOW + 1.0)
    first = replace(before, speed_samples=tuple([each for each in RUNNING.speed_samples if each.workers != 2]))
    kept, grown = Grant(Allocation(2, 1), Reason.LEARNING_SPEED), Grant(Allocation(4, 2), Reason.LEARNING_SPEED)
    assert "its speed is measured anew before the next one" in decision(before, kept).message
    assert decision(first, kept).message == "Keeps 2 workers and 1 server until its speed at this size is measured."
    assert "to learn how its speed grows" not in decision(before, grown).message
