"""Posts that wait together are stored together, and each gets its own answer after the commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest
from tests.service.store.store_builders import MakeJob, a_sample, samples_of

from optimus_contract.telemetry import SampleColumns
from optimus_service.store.errors import DatabaseNotAvailable, JobNotFound
from optimus_service.store.records import AddedSamples, PostedSamples
from optimus_service.store.repository import Repository
from optimus_service.store.samples.sample_queue import Added, QueueIsFull, SampleQueue

WAIT_SECONDS = 60


def a_post(job_id: str = "job-1", sequence: int = 0, n_samples: int = 1) -> PostedSamples:
    samples = [a_sample(sequence=sequence + each, step=sequence + each + 1) for each in range(n_samples)]
    return PostedSamples(job_id, SampleColumns.of(samples), 1.0)


class HeldStore:
    """Takes posts as `answer` says; the first call waits until the test lets it go."""

    def __init__(self, answer: Callable[[Sequence[PostedSamples]], Sequence[Added]]) -> None:
        self._answer = answer
        self.called = threading.Event()
        self.released = threading.Event()
        self.groups: list[int] = []

    def __call__(self, posts: Sequence[PostedSamples]) -> Sequence[Added]:
        self.called.set()
        assert self.released.wait(WAIT_SECONDS)
        self.groups.append(len(posts))
        return self._answer(posts)


def accepted(posts: Sequence[PostedSamples]) -> Sequence[Added]:
    return [AddedSamples(len(post.columns), ()) for post in posts]


def behind(store: HeldStore, queue: SampleQueue, posts: Sequence[PostedSamples]) -> list[Future[AddedSamples]]:
    """Put a first post, and while it is being stored the others; then let the store go on."""
    first = queue.put(a_post("first"))
    assert store.called.wait(WAIT_SECONDS)
    others = [queue.put(post) for post in posts]
    assert not any(future.done() for future in (first, *others))
    store.released.set()
    return [first, *others]


def test_what_waits_meanwhile_is_one_transaction() -> None:
    store = HeldStore(accepted)
    answers = behind(store, SampleQueue(store), [a_post(n_samples=n) for n in (1, 2, 3)])
    assert [future.result(WAIT_SECONDS).accepted for future in answers] == [1, 1, 2, 3]
    assert store.groups == [1, 3]


def test_a_full_queue_takes_no_more_until_there_is_room() -> None:
    store = HeldStore(accepted)
    queue = SampleQueue(store, max_waiting=5)
    first = queue.put(a_post("first"))
    assert store.called.wait(WAIT_SECONDS)
    waiting = queue.put(a_post(n_samples=3))
    with pytest.raises(QueueIsFull):
        queue.put(a_post(n_samples=3))
    second = queue.put(a_post(n_samples=2))
    store.released.set()
    assert [future.result(WAIT_SECONDS).accepted for future in (first, waiting, second)] == [1, 3, 2]
    assert queue.put(a_post(n_samples=9)).result(WAIT_SECONDS).accepted == 9  # alone it may be larger


def test_a_database_that_is_away_is_told_to_all_and_the_queue_goes_on() -> None:
    away = DatabaseNotAvailable("gone")

    def answer(posts: Sequence[PostedSamples]) -> Sequence[Added]:
        if len(posts) == 2:
            raise away
        return accepted(posts)

    store = HeldStore(answer)
    queue = SampleQueue(store)
    first, *others = behind(store, queue, [a_post(), a_post()])
    assert first.result(WAIT_SECONDS).accepted == 1
    assert [future.exception(WAIT_SECONDS) for future in others] == [away, away]
    assert queue.put(a_post()).result(WAIT_SECONDS).accepted == 1


def test_a_post_that_breaks_a_transaction_keeps_no_other_from_being_stored() -> None:
    broken = ValueError("a mistake in our code")

    def answer(posts: Sequence[PostedSamples]) -> Sequence[Added]:
        if any(post.job_id == "broken" for post in posts):
            raise broken
        return accepted(posts)

    store = HeldStore(answer)
    *_, good, bad = behind(store, SampleQueue(store), [a_post(), a_post("broken")])
    assert good.result(WAIT_SECONDS).accepted == 1
    assert bad.exception(WAIT_SECONDS) is broken


def test_who_went_away_is_not_stored() -> None:
    store = HeldStore(accepted)
    queue = SampleQueue(store)
    first = queue.put(a_post("first"))
    assert store.called.wait(WAIT_SECONDS)
    assert queue.put(a_post()).cancel()
    last = queue.put(a_post())
    store.released.set()
    assert [future.result(WAIT_SECONDS).accepted for future in (first, last)] == [1, 1]
    assert store.groups == [1, 1]


def test_posts_of_one_transaction_see_each_other(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("job-1", "job-2"):
        make_job(job_id)
    posts = [a_post(n_samples=3), a_post("ghost"), a_post("job-2"), a_post(sequence=2, n_samples=2)]
    one, ghost, two, again = repository.samples.add(posts)
    assert isinstance(ghost, JobNotFound)
    assert isinstance(again, AddedSamples)
    assert [each.accepted for each in (one, two, again) if isinstance(each, AddedSamples)] == [3, 1, 1]
    assert [(each.index, each.why) for each in again.ignored] == [(0, "duplicate")]
    stored = samples_of(repository, "job-1")
    assert [(sample.id, sample.sequence) for sample in stored] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert repository.jobs.get("job-1").step == 4
    assert repository.jobs.get("job-2").step == 1
