"""What is known of a job by its samples is kept beyond the process: nothing changes by that."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from tests.service.loop.loop_world import World
from tests.service.store.store_builders import batches_of, samples_of

from optimus_contract.telemetry import Gradients
from optimus_scheduler.model import Mode, Snapshot
from optimus_service.observe.histories import FORMAT, Histories, basis_of, begun, pack, unpack
from optimus_service.observe.snapshot import ClusterState, Observer
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store import histories
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.records import Document, KeptHistory, MembershipRecord, SampleBatch, SampleRecord

losses = st.one_of(st.none(), st.floats(-1e3, 1e3), st.sampled_from([math.nan, math.inf, -math.inf]))
gradients = st.one_of(st.none(), st.builds(Gradients, square=st.floats(0.1, 2), variance=st.floats(-1, 9)))
metrics = st.one_of(st.none(), st.dictionaries(st.sampled_from(["accuracy", "f1"]), st.floats(0, 1)))


@st.composite
def samples(draw: st.DrawFn) -> list[SampleRecord]:
    """Records of up to three ranks and three membership epochs, in the order of ids."""
    n = draw(st.integers(0, 40))
    rows = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 400)), min_size=n, max_size=n))
    return [
        SampleRecord(
            id=number, received_at=float(number), membership_epoch=epoch, rank=rank, sequence=number - 1, workers=3,
            servers=draw(st.integers(0, 1)), at=number * 0.7, step=step, n_steps=draw(st.integers(1, 50)),
            data_epoch=0.0, loss=draw(losses), learning_rate=draw(st.one_of(st.none(), st.floats(0, 1))),
            n_examples=step % 64, seconds=0.1 + step % 7, compute_seconds=step % 5 / 3, gradients=draw(gradients),
            metrics=draw(metrics),
        )
        for number, (epoch, rank, step) in enumerate(sorted(rows, key=lambda row: row[0]), 1)
    ]  # fmt: skip


def basis(mode: Mode = Mode.SYNC, metric: str | None = "accuracy") -> Document:
    return {"format": FORMAT, "mode": mode.value, "metric": metric, "measures_parts": True}


MEMBERSHIPS = [
    MembershipRecord(
        job_id="j", epoch=epoch, generation=epoch, at=0.0, step=step, workers=("a", "b", "c"), servers=(), cause="x",
        lost_steps=lost, gpu_type="A100" if epoch > 1 else None,
    )
    for epoch, step, lost in ((1, 0, 0), (2, 150, 30), (3, 300, 0))
]  # fmt: skip


def seen(history: JobHistory) -> tuple[Any, ...]:
    """All that a round and the plots read of a history. By words, in which NaN equals NaN and every bit counts."""
    parts = [history.losses.points(), history.metrics.points(), history.learning_rates(), history.noise_curve()]
    figures = {name: values.points() for name, values in history.evaluations.items()}
    counts = history.last_id, history.progressed_at, history.longest_seconds, history.last_steps
    broken = history.nonfinite_since, history.nonfinite_steps
    computing = history.compute_seconds, history.computed_examples, history.computed_steps
    speeds = history.speeds.samples(), astuple(history.pauses), history.slow_workers.ranks(), history.speeds.course()
    return tuple(map(repr, (parts, figures, counts, broken, computing, speeds, list(history.noise))))


@settings(max_examples=40)
@given(samples(), st.integers(0, 40), st.sampled_from(list(Mode)), st.sampled_from([None, "accuracy"]))
def test_a_history_that_was_kept_goes_on_as_if_nothing_had_been(
    stream: list[SampleRecord], cut: int, mode: Mode, metric: str | None
) -> None:
    on = basis(mode, metric)
    along = begun(on)
    along.learn_memberships(MEMBERSHIPS[:2])
    along.add(batches_of(stream[:cut]))
    kept = unpack(pack(along, on), on)
    assert kept is not None
    for history in (along, kept):
        history.learn_memberships(MEMBERSHIPS)
        history.add(batches_of(stream[cut:]))
    assert seen(kept) == seen(along)
    assert pack(kept, on) == pack(along, on)


@settings(max_examples=40)
@given(samples(), st.lists(st.integers(0, 40), max_size=4))
def test_how_samples_are_read_does_not_matter(stream: list[SampleRecord], cuts: Sequence[int]) -> None:
    """One by one, or so many at a time."""
    one_by_one, parts = JobHistory(Mode.SYNC), JobHistory(Mode.SYNC)
    for batch in batches_of(stream):
        one_by_one.add([batch])
    for end in [*sorted(cuts), len(stream)]:
        parts.add(batches_of(stream[:end]))
    assert seen(parts) == seen(one_by_one)


def test_a_history_of_another_basis_is_not_used() -> None:
    document = pack(begun(basis()), basis())
    assert unpack(document, basis(Mode.ASYNC)) is None
    assert unpack(document, basis() | {"format": FORMAT + 1}) is None
    assert unpack(document, basis()) is not None


@given(samples())
@settings(max_examples=20)
def test_another_figure_may_count_after_a_restart(stream: list[SampleRecord]) -> None:
    before, after = begun(basis(metric="accuracy")), begun(basis(metric="f1"))
    for history in (before, after):
        history.add(batches_of(stream))
    kept = unpack(pack(before, basis(metric="accuracy")), basis(metric="f1"))
    assert kept is not None
    assert kept.metrics.points() == after.metrics.points()


def test_the_samples_of_a_post_are_read_from_any_of_them_on() -> None:
    batch = SampleBatch(11, 1.0, {"step": [1, 2, 3]})
    assert [batch.after(id_).columns["step"] for id_ in (10, 11, 13)] == [[1, 2, 3], [2, 3], []]
    assert batch.after(11).first_id == 12
    assert list(batch.column("n_steps")) == [1, 1, 1]


# --- in a service ----------------------------------------------------------------------------------------------------


def observer_of(world: World) -> Observer:
    return Observer(world.repository, Histories(world.repository), world.settings.scheduling)


def test_a_restarted_service_sees_what_one_sees_that_went_on(world: World, database_url: str) -> None:
    """Bit for bit; and it reads no sample that was read before."""
    world.submit()
    world.submit("job-2")
    going_on = observer_of(world)
    for _ in range(3):
        world.round()
        world.train(100.0)
        going_on.look(ClusterState.of(world.cluster), world.clock.now)
    going_on.keep(world.repository.as_leader(world.fence), least=1)
    engine = create_engine_from_url(database_url)
    with engine.begin() as connection:
        assert connection.execute(text("DELETE FROM sample_batches")).rowcount > 0
    engine.dispose()
    world.train(5.0)
    cluster_state, now = ClusterState.of(world.cluster), world.clock.now
    restarted, went_on = observer_of(world).look(cluster_state, now), going_on.look(cluster_state, now)
    assert repr(restarted) == repr(went_on), "NaN, too"
    assert all(job.losses and job.speed_samples for job in restarted.jobs)


def test_threads_share_what_they_read(world: World) -> None:
    """Each sample counts once, whoever reads it, and what one was given stays as it is."""
    for job_id in ("job-1", "job-2"):
        world.submit(job_id)
    world.round()
    shared = Histories(world.repository, samples_at_once=7)
    is_over = threading.Event()

    def look() -> list[tuple[Snapshot, str]]:
        observer, seen = Observer(world.repository, shared, world.settings.scheduling), []
        while not is_over.is_set():
            snapshot = observer.look(ClusterState.of(world.cluster), world.clock.now)
            seen.append((snapshot, repr(snapshot)))
        return seen

    with ThreadPoolExecutor(3) as pool:
        looks = [pool.submit(look) for _ in range(3)]
        for _ in range(8):
            world.train(10.0)
        is_over.set()
    assert all(repr(snapshot) == words for each in looks for snapshot, words in each.result())
    while not all(history.is_current for history in shared.update(world.repository.jobs.active(), {}).values()):
        pass
    last = Observer(world.repository, shared, world.settings.scheduling)
    cluster_state, now = ClusterState.of(world.cluster), world.clock.now
    assert repr(last.look(cluster_state, now)) == repr(observer_of(world).look(cluster_state, now))


def test_a_history_that_is_half_read_is_not_dropped(world: World) -> None:
    world.submit()
    world.round()
    world.train(10.0)
    (job,) = world.repository.jobs.active()
    read = Histories(world.repository, samples_at_once=3)
    before = read.updated(job, ())
    assert not before.is_current
    read.keep_only(())
    while not (history := read.updated(job, ())).is_current:
        assert history is before
    read.keep_only(())
    assert read.updated(job, ()) is not before


def test_a_service_that_ends_keeps_all_that_it_knows(world: World) -> None:
    world.submit()
    world.round()
    world.train(3.0)
    world.round()
    world.rounds.keep_histories(world.fence)
    (document,) = world.repository.histories.of_jobs(["job-1"]).values()
    kept = unpack(document.document, basis_of(world.repository.jobs.get("job-1")))
    assert kept is not None
    assert document.last_id == kept.last_id == world.repository.samples.newest("job-1", 1)[0].id


def test_what_is_known_of_jobs_that_are_gone_is_not_kept(world: World) -> None:
    world.submit()
    world.repository.histories.put({"job-1": KeptHistory(0, b"one"), "gone": KeptHistory(0, b"none")})
    world.repository.histories.put({"job-1": KeptHistory(0, b"two")})
    assert world.repository.histories.of_jobs(["job-1", "gone"]) == {"job-1": KeptHistory(0, b"two")}


def test_who_was_left_behind_goes_on_from_what_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that had read some samples, while the leader read on and the samples between went."""
    monkeypatch.setattr(histories, "SAMPLES_KEPT", 5)
    world.submit()
    world.round()
    world.train(2.0)
    left_behind = observer_of(world)
    left_behind.look(ClusterState.of(world.cluster), world.clock.now)
    for _ in range(4):
        world.train(10.0)
        world.round()
        world.rounds.keep_histories(world.fence)
    left = samples_of(world.repository, "job-1")
    assert left[0].id > 1, "the first ones are gone"
    cluster_state, now = ClusterState.of(world.cluster), world.clock.now
    assert repr(left_behind.look(cluster_state, now)) == repr(observer_of(world).look(cluster_state, now))
