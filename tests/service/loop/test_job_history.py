"""What a job's samples are condensed to."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.store.store_builders import a_membership, batches_of

from optimus_models.speed.course import MOST_PARTS
from optimus_scheduler.model import Mode
from optimus_service.observe.speeds import MAX_WINDOWS_PER_SIZE
from optimus_service.observe.telemetry import JobHistory
from optimus_service.observe.unsaved_work import LastStep
from optimus_service.store.records import MembershipRecord, SampleRecord


def sample(
    step: int, number: int | None = None, *, loss: float = 1.0, epoch: int = 1, rank: int = 0, **rest: float
) -> SampleRecord:
    """A record with the id `number` (default: its step)."""
    values = {
        "sequence": step,
        "workers": 2,
        "servers": 1,
        "at": float(step),
        "data_epoch": 0.0,
        "n_examples": 8,
        "seconds": 1.0,
        "received_at": 100.0 + step,
        **rest,
    }
    return SampleRecord(id=number or step, membership_epoch=epoch, rank=rank, step=step, loss=loss, **values)  # type: ignore[arg-type]


def membership(epoch: int, step: int, lost_steps: int = 0) -> MembershipRecord:
    return MembershipRecord(
        job_id="job-1", epoch=epoch, generation=epoch, at=0.0, step=step, workers=(), servers=(), cause="rescale",
        lost_steps=lost_steps,
    )  # fmt: skip


def history_of(samples: Iterable[SampleRecord], mode: Mode = Mode.SYNC) -> JobHistory:
    history = JobHistory(mode)
    history.add(batches_of(samples))
    return history


def test_a_job_that_waits_takes_little_memory() -> None:
    """Thousands wait, and each has a history twice: rounds and dry runs have their own."""
    history_of([sample(1)])  # what is made once is there
    tracemalloc.start()
    try:
        waiting = [JobHistory(Mode.SYNC) for _ in range(200)]
        n_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_bytes / len(waiting) < 2000


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["task", "script"])
def test_a_mean_over_steps_belongs_to_the_middle_one(mode: str) -> None:
    """However many steps a sample has, the curve is the same. A script tells the loss of its last step."""
    falls = [1.0 - 0.01 * step for step in range(1, 57)]

    def curve(n_steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        history = JobHistory(Mode.SYNC, measures_parts=mode == "task")
        ends = range(n_steps, 57, n_steps)
        means = [sum(falls[end - n_steps : end]) / n_steps for end in ends]
        told = means if mode == "task" else [falls[end - 1] for end in ends]
        each = zip(ends, told, strict=True)
        history.add(batches_of([sample(end, loss=loss, n_steps=n_steps) for end, loss in each]))
        return history.losses.points()

    for steps, losses in map(curve, (1, 7, 28)):
        assert losses == pytest.approx([falls[round(step) - 1] for step in steps], abs=0.006)


def test_losses_that_are_no_numbers_count_from_the_step_that_told_them() -> None:
    """Of the steps before it in the sample nothing is known, wherever the curve has their mean."""
    history = history_of([sample(10, n_steps=10), sample(20, n_steps=10, loss=math.nan)])
    assert (history.nonfinite_since, history.nonfinite_steps) == (20, 1)
    assert history.losses.points()[0][-1] == 16.0


# --- learning rates --------------------------------------------------------------------------------------------------


def test_the_newest_learning_rate_is_exact_and_older_ones_are_means() -> None:
    history = history_of(sample(step, learning_rate=0.1 if step <= 900 else 0.01) for step in range(1, 1001))
    steps, rates = history.learning_rates()
    assert len(steps) <= 128
    assert list(steps) == sorted(set(steps))
    assert (steps[-1], rates[-1]) == (999.0, 0.01), "of the last of a thousand steps, counted from 0"
    assert history.learning_rates() == (steps, rates)
    assert history.learning_rates() is history.learning_rates(), "rounds keep those of each job: one copy is enough"
    assert all(rate == pytest.approx(0.1) for step, rate in zip(steps, rates, strict=True) if step < 890)


def test_learning_rates_are_those_of_the_first_worker_and_rolled_back() -> None:
    history = history_of(sample(step, number=2 * step - rank, rank=rank, learning_rate=0.1 * step * (1 - rank))
                         for step in range(1, 7) for rank in (1, 0))  # fmt: skip
    history.learn_memberships([membership(2, step=4, lost_steps=2)])
    steps, rates = history.learning_rates()
    assert steps == (0.0, 1.0, 2.0, 3.0)
    assert rates == pytest.approx((0.1, 0.2, 0.3, 0.4))
    history.add(batches_of([sample(5, number=20, epoch=2, learning_rate=0.7)]))
    assert history.learning_rates()[1][-1] == 0.7
    assert history_of([sample(1)]).learning_rates() == ((), ()), "a job that does not tell them"


# --- loss ------------------------------------------------------------------------------------------------------------


def test_loss_of_a_step_is_weighted_by_examples() -> None:
    history = history_of(
        [sample(5, number=1, loss=1.0, n_examples=30), sample(5, number=2, loss=3.0, rank=1, n_examples=10)]
    )
    assert history.losses.points() == ((5.0,), (1.5,))


def test_samples_are_counted_once() -> None:
    history = history_of([sample(1), sample(2)])
    history.add(batches_of([sample(1), sample(2), sample(3, loss=4.0)]))
    assert history.losses.points() == ((1.0, 2.0, 3.0), (1.0, 1.0, 4.0))
    assert history.last_id == 3


def test_rolled_back_steps_do_not_count() -> None:
    history = history_of([sample(step, loss=9.0) for step in range(1, 11)])
    history.learn_memberships([membership(2, step=6, lost_steps=4)])
    history.add(batches_of([sample(7, number=21, loss=1.0, epoch=2)]))
    # A straggler of the epoch before, beyond the point at which the new one began:
    history.add(batches_of([sample(8, number=22, loss=9.0, epoch=1)]))
    steps, losses = history.losses.points()
    assert steps == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    assert losses[-1] == 1.0


def test_reading_everything_again_gives_the_same() -> None:
    """As after a restart of the service, when memberships are known before the samples are read."""
    first = [sample(step, loss=9.0) for step in range(1, 11)]
    second = [sample(step, number=20 + step, loss=1.0, epoch=2) for step in range(7, 12)]
    along = history_of(first)
    along.learn_memberships([membership(1, 0), membership(2, 6, lost_steps=4)])
    along.add(batches_of(second))
    afterwards = JobHistory(Mode.SYNC)
    afterwards.learn_memberships([membership(1, 0), membership(2, 6, lost_steps=4)])
    afterwards.add(batches_of([*first, *second]))
    assert along.losses.points() == afterwards.losses.points()
    assert along.progressed_at == afterwards.progressed_at == 111.0


def test_progress_is_going_further_than_ever() -> None:
    history = history_of([sample(10), sample(4, number=11, epoch=2), sample(10, number=12, epoch=2)])
    assert history.progressed_at == 110.0


def test_each_epoch_has_its_last_step_whether_that_had_been_made_before_or_not() -> None:
    again = [sample(step, number=10 + step, epoch=2, at=60.0 + step) for step in (4, 9, 9)]
    late = sample(7, number=30, epoch=1, at=8.5)
    history = history_of([*(sample(step) for step in range(1, 10)), *again, late])
    assert {epoch: step.at for epoch, step in history.last_steps.items()} == {1: 9.0, 2: 69.0}
    assert history_of([sample(1, at=500.0)]).last_steps == {1: LastStep(101.0)}, "no step comes after it was received"


def task_of(own: float, between: float, pauses: Sequence[float], evaluates: bool, mode: Mode) -> JobHistory:
    """Two workers, 40 steps in a sample: each step takes its own seconds, and others until the next. One pause is in
    the midst of every ten samples."""
    at, samples = 0.0, list[SampleRecord]()
    for step in range(1, 10 * len(pauses) + 1):
        pause = pauses[step // 10] if step % 10 == 5 else 0.0
        at += 40 * (own + between) + pause
        rest: dict[str, Any] = {"n_steps": 40, "metrics": {"accuracy": 0.5} if pause and evaluates else None}
        samples += [
            sample(step, 2 * step + rank, rank=rank, sequence=step - 1, at=at, seconds=40 * own, **rest)
            for rank in (0, 1)
        ]
    return history_of(samples, mode)


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
@pytest.mark.parametrize(
    ("own", "between", "pauses", "evaluates"),
    [
        (0.005, 0.003, [0.0] * 5, False),
        (0.005, 0.003, [2.0] * 5, True),
        (0.005, 0.003, [5.0] * 5, False),
        (0.005, 0.003, [0.2] * 5, True),
        (0.005, 0.0, [2.0] * 5, True),
        (0.5, 0.002, [8.0] * 5, False),
    ],
)
def test_the_speed_of_a_task_counts_what_is_between_its_steps_but_no_pauses(
    own: float, between: float, pauses: list[float], evaluates: bool, mode: Mode
) -> None:
    """Of steps of milliseconds, what its worker and the coordinator do between two is a large part of the time."""
    history = task_of(own, between, pauses, evaluates, mode)
    ranks = 1 if mode is Mode.SYNC else 2
    for speed in history.speeds.samples():
        assert speed.steps_per_second == pytest.approx(ranks / (own + between), rel=0.03)
    steps = (10 * len(pauses) - 1) * 40 * (own + between)
    assert history.pauses.busy_seconds == pytest.approx(steps, rel=0.01)
    assert history.pauses.seconds == pytest.approx(steps + sum(pauses), rel=0.01)


def test_what_is_between_steps_is_measured_anew_in_each_membership() -> None:
    """Also where the service stores what it knows, and goes on with that."""
    each: dict[str, Any] = {"n_steps": 40, "seconds": 0.2}
    first = [sample(step, sequence=step - 1, at=0.5 * step, **each) for step in range(1, 40)]
    second = [
        sample(step, epoch=2, sequence=step - 40, at=100.0 + 0.25 * step, workers=1, **each) for step in range(40, 80)
    ]
    whole, parts = history_of([*first, *second]), JobHistory(Mode.SYNC)
    for one in (*first, *second):
        parts.add(batches_of([one]))
        state, parts = parts.state(), JobHistory(Mode.SYNC)
        parts.restore(state)
    assert parts.speeds.samples() == whole.speeds.samples()
    paces = {speed.workers: speed.steps_per_second for speed in whole.speeds.samples()}
    assert paces == pytest.approx({2: 80.0, 1: 160.0}, rel=1e-6)


def test_a_checkpoint_after_the_first_steps_makes_no_speed_slower() -> None:
    ats = [2.0, 9.0, 11.01, 13.02, 15.03]
    history = history_of(sample(step, sequence=step, at=at, seconds=2.0, workers=1) for step, at in enumerate(ats))
    speeds = [speed.steps_per_second for speed in history.speeds.samples()]
    assert speeds == pytest.approx([0.5] * len(speeds), rel=0.01)


def script_of(seconds: Iterable[float], history: JobHistory | None = None, first: int = 1) -> JobHistory:
    """A script whose steps took so long each, what it did before them included."""
    history = history or JobHistory(Mode.SYNC, measures_parts=False)
    at, samples = history.pauses.last_at or 0.0, []
    for step, took in enumerate(seconds, first):
        at += took
        samples.append(sample(step, at=at, received_at=at, seconds=took, n_steps=1, workers=1, servers=0))
    history.add(batches_of(samples))
    return history


@pytest.mark.parametrize(("each", "pause", "n_steps"), [(0.1, 3.0, 30), (0.2, 5.0, 50), (1.0, 20.0, 20)])
def test_what_a_script_does_between_its_steps_is_time_and_no_speed(each: float, pause: float, n_steps: int) -> None:
    """It evaluates after each epoch: its speed is that of its steps, and its pauses come with all that are left."""
    epoch = [each + pause, *[each] * (n_steps - 1)]
    history = script_of([each] * n_steps + 4 * epoch)
    for speed in history.speeds.samples():
        assert speed.steps_per_second == pytest.approx(1.0 / each, rel=1e-6)
    took = 5 * n_steps * each + 4 * pause
    busy_part = history.pauses.busy_seconds / history.pauses.seconds
    assert 5 * n_steps * each / busy_part == pytest.approx(took, rel=0.05)


def test_a_script_that_becomes_slower_is_seen_to_be() -> None:
    history = script_of([0.5] * 40 + [4.0] * 40)
    assert history.speeds.samples()[-1].steps_per_second == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize(("before", "after"), [(0.5, 2.5), (0.2, 3.0), (2.0, 20.0)])
def test_samples_after_each_other_that_all_take_long_are_slower_steps_and_no_pauses(
    before: float, after: float
) -> None:
    """From the first of them on: neither their steps nor their seconds count as those of before."""
    history = script_of([before] * 60 + [after] * 4)
    paces = [round(1.0 / speed.steps_per_second, 6) for speed in history.speeds.samples()]
    assert set(paces) == {before, after}
    assert paces == sorted(paces), "none of before comes after one of now"
    assert history.pauses.busy_seconds == pytest.approx(history.pauses.seconds)
    history = script_of([after] * 3, history, first=65)
    assert history.pauses.busy_seconds == pytest.approx(history.pauses.seconds)


def test_of_samples_about_four_times_as_long_all_are_slower_steps() -> None:
    """Those a little shorter, too: they are nearer to the long ones than to the usual."""
    history = script_of([0.5] * 60 + [2.02, 1.98] * 10)
    assert history.pauses.busy_seconds == pytest.approx(history.pauses.seconds)
    assert {round(speed.steps_per_second, 1) for speed in history.speeds.samples()} == {2.0, 0.5}


def test_an_evaluation_and_a_checkpoint_after_it_are_pauses() -> None:
    history = script_of([0.5] * 20 + ([9.5, 6.5] + [0.5] * 18) * 3)
    assert {round(speed.steps_per_second, 6) for speed in history.speeds.samples()} == {2.0}
    assert history.pauses.seconds - history.pauses.busy_seconds == pytest.approx(3 * 15.0)


@pytest.mark.parametrize("kept_after", [9, 20])
def test_a_kept_history_of_a_script_knows_how_long_its_steps_take(kept_after: int) -> None:
    took = [0.5] * 9 + [6.5] + [0.5] * 9 + [4.0] * 3
    whole, before = script_of(took), script_of(took[:kept_after])
    after = JobHistory(Mode.SYNC, measures_parts=False)
    state = before.state()
    after.restore(state | {"pauses": [list(each) if isinstance(each, tuple) else each for each in state["pauses"]]})
    script_of(took[kept_after:], after, first=kept_after + 1)
    assert after.pauses == whole.pauses
    assert after.speeds.samples() == whole.speeds.samples()


def test_how_often_steps_are_reported_is_known_from_the_newest_reports() -> None:
    def reported(step: int, came: float, epoch: int = 1) -> SampleRecord:
        return sample(step, number=step, epoch=epoch, at=came, received_at=came)

    each = [reported(200 * number, 20.0 * number) for number in (1, 2, 3)]
    assert history_of(each[:1]).report_seconds == 0.0
    assert history_of(each[:2]).report_seconds == 20.0
    assert history_of(each).report_seconds == 20.0
    paused = [*each, reported(650, 200.0), reported(850, 220.0, epoch=2)]
    assert history_of(paused).report_seconds == 20.0, "neither a standstill nor a change of size counts"
    seldom = history_of([*paused, reported(1050, 270.0, epoch=2)])
    assert seldom.last_steps == {1: LastStep(200.0, 20.0), 2: LastStep(270.0, 50.0)}, "each its own"
    assert history_of([*paused, reported(1050, 240.0, epoch=2)]).report_seconds == 20.0


# --- speed -----------------------------------------------------------------------------------------------------------


def ranks(n_records: int, seconds: float, *, n_ranks: int = 2, epoch: int = 1, first_id: int = 1) -> list[SampleRecord]:
    """Records of all ranks, one step each."""
    return [
        sample(
            1, number=first_id + index, epoch=epoch, rank=index % n_ranks, sequence=index // n_ranks, seconds=seconds
        )
        for index in range(n_records * n_ranks)
    ]


def test_sync_speed_is_that_of_one_rank() -> None:
    (speed,) = history_of(ranks(6, seconds=0.5)).speeds.samples()
    assert (speed.workers, speed.servers) == (2, 1)
    assert speed.steps_per_second == pytest.approx(2.0)
    assert speed.n_steps == 5, "the first record of an epoch does not count"


def test_async_speed_is_the_sum_over_ranks() -> None:
    (speed,) = history_of(ranks(6, seconds=0.5), Mode.ASYNC).speeds.samples()
    assert speed.steps_per_second == pytest.approx(4.0)
    assert speed.n_steps == 10


def test_async_speed_waits_for_every_rank() -> None:
    only_one = [record for record in ranks(9, seconds=0.5) if record.rank == 0]
    assert history_of(only_one, Mode.ASYNC).speeds.samples() == ()


def test_only_jobs_without_servers_tell_how_long_they_exchange() -> None:
    """A fifth of each step; with servers, waiting is not what pushing and pulling take."""
    for servers in (0, 2):
        records = [replace(each, servers=servers, wait_seconds=0.2 * each.seconds) for each in ranks(30, 0.5)]
        (speed, *_) = history_of(records).speeds.samples()
        if servers:
            assert speed.exchange_seconds is None
        else:
            assert speed.exchange_seconds == pytest.approx(0.2 / speed.steps_per_second)


def test_first_record_and_short_windows_are_no_measure() -> None:
    assert history_of(ranks(1, seconds=100.0)).speeds.samples() == ()
    assert history_of(ranks(3, seconds=0.1)).speeds.samples() == ()


def test_speeds_do_not_mix_epochs() -> None:
    records = [
        *ranks(5, seconds=0.5),
        *(replace(record, workers=3) for record in ranks(5, seconds=2.0, epoch=2, n_ranks=3, first_id=100)),
    ]
    speeds = history_of(records).speeds.samples()
    assert {(speed.workers, round(speed.steps_per_second, 6)) for speed in speeds} == {(2, 2.0), (3, 0.5)}
    assert sum(speed.n_steps for speed in speeds) == 4 + 4


def test_late_records_of_an_older_epoch_are_left_out() -> None:
    records = [*ranks(5, seconds=0.5), *ranks(5, seconds=0.5, epoch=2, first_id=100)]
    late = [replace(record, id=200 + record.id, seconds=50.0) for record in ranks(5, seconds=0.5)]
    assert history_of([*records, *late]).speeds.samples() == history_of(records).speeds.samples()


def test_old_windows_of_a_size_are_forgotten() -> None:
    old = ranks(60, seconds=1.0)
    new = [replace(record, seconds=0.25) for record in ranks(400, seconds=1.0, epoch=2, first_id=1000)]
    history = history_of([*old, *new]).speeds
    speeds = history.samples()
    assert len(speeds) <= MAX_WINDOWS_PER_SIZE + 1
    assert all(speed.steps_per_second == pytest.approx(4.0) for speed in speeds)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.floats(0, 10)), max_size=100))
def test_any_stream_gives_speeds_that_are_positive(stream: Sequence[tuple[int, int, float]]) -> None:
    history = JobHistory(Mode.ASYNC)
    samples = [
        sample(index + 1, epoch=epoch, rank=rank, workers=4, sequence=index, seconds=seconds)
        for index, (epoch, rank, seconds) in enumerate(stream)
    ]
    history.add(batches_of(samples))
    assert all(speed.steps_per_second > 0 and speed.n_steps > 0 for speed in history.speeds.samples())


def test_the_course_of_a_run_is_kept_in_few_parts() -> None:
    """Without its evaluations."""
    history = script_of([0.1] * 400 + [3.1] + [0.1] * 399 + [0.35] * 1200)
    steps, seconds = history.speeds.course()
    assert 2 <= len(steps) <= MOST_PARTS
    around = max(late - early for early, late in pairwise(steps))
    for step, each in zip(steps, seconds, strict=True):
        expected = (0.1, 0.35) if abs(step - 800) < around else (0.1, 0.1) if step < 800 else (0.35, 0.35)
        assert 0.999 * expected[0] <= each <= 1.001 * expected[1]


def test_a_history_that_an_older_release_kept_tells_no_course() -> None:
    """Nothing is known of its beginning."""
    state = script_of([0.1] * 50).state()
    del state["speeds"]["course"]
    history = JobHistory(Mode.SYNC, measures_parts=False)
    history.restore(state)
    assert script_of([0.1] * 50, history, first=51).speeds.course() == ((), ())


def test_steps_that_are_made_again_count_once_in_the_course() -> None:
    history = script_of([0.1] * 40)
    history.learn_memberships([a_membership(epoch=1, step=0), a_membership(epoch=2, step=20, lost_steps=20)])
    assert 18 <= max(history.speeds.course()[0]) <= 21, "but for the part that it is in"
