"""Many writers at once: threads of one service, and replicas that share a database."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from tests.service import leases
from tests.service.store.store_builders import (
    MakeJob,
    a_decision,
    a_membership,
    a_round,
    a_sample,
    add_samples,
    placed,
    put_task,
    samples_of,
    set_wanted,
)

from optimus_contract.telemetry import Sample
from optimus_scheduler.model import Allocation, Directive, Role
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import LEADER_LEASE, OneWriter, Repository

Answer = TypeVar("Answer")
WAIT_SECONDS = 60


@pytest.fixture
def replica(database_url: str) -> Iterator[Repository]:
    """A second service on the same database."""
    replica = Repository(create_engine_from_url(database_url))
    yield replica
    replica.close()


def at_once(*calls: Callable[[], Answer]) -> list[Answer]:
    """Run the calls in a thread each, begun together; their answers in order."""
    ready = threading.Barrier(len(calls))

    def run(call: Callable[[], Answer]) -> Answer:
        ready.wait(WAIT_SECONDS)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(WAIT_SECONDS) for future in [pool.submit(run, call) for call in calls]]


def test_racing_equal_submissions_make_one_job(repository: Repository, replica: Repository) -> None:
    def submit(store: Repository, number: int) -> Callable[[], tuple[JobRecord, bool]]:
        spec = {"name": "a", "project": "b"}
        return lambda: store.jobs.create(f"job-{number}", spec, "nonce", "key", "hash", float(number))

    answers = at_once(*(submit(store, number) for number, store in enumerate([repository, replica] * 4)))
    assert sorted(created for _, created in answers) == [False] * 7 + [True]
    assert len({job.id for job, _ in answers}) == 1
    assert len(repository.events.page().items) == 1


def test_replicas_that_race_for_the_lease_get_it_one_at_a_time(repository: Repository, replica: Repository) -> None:
    tokens = []
    for _ in range(5):
        taken = at_once(
            lambda: repository.leases.acquire(LEADER_LEASE, "a", 10.0),
            lambda: replica.leases.acquire(LEADER_LEASE, "b", 10.0),
        )
        winners = [lease for lease in taken if lease is not None]
        assert len(winners) == 1
        tokens.append((winners[0].token, winners[0].holder))
        leases.run_out(repository)
    for before, after in itertools.pairwise(tokens):
        assert after[0] - before[0] == (after[1] != before[1])


def test_a_racing_post_is_counted_once(repository: Repository, replica: Repository, make_job: MakeJob) -> None:
    make_job()
    posts = [
        [a_sample(sequence=number, step=number) for number in range(start, start + 20)] for start in (0, 10, 0, 10)
    ]

    def post(store: Repository, samples: list[Sample]) -> Callable[[], int]:
        return lambda: add_samples(store, "job-1", samples, 1.0).accepted

    accepted = at_once(*(post(store, samples) for store, samples in zip([repository, replica] * 2, posts, strict=True)))
    assert sum(accepted) == 30
    assert len(samples_of(repository, "job-1")) == 30
    assert repository.jobs.get("job-1").step == 29


def test_a_reader_that_goes_on_from_the_last_id_misses_nothing(
    repository: Repository, replica: Repository, make_job: MakeJob
) -> None:
    make_job()
    seen: list[int] = []
    posted = threading.Event()

    def write(store: Repository, rank: int) -> Callable[[], None]:
        def run() -> None:
            for number in range(30):
                add_samples(store, "job-1", [a_sample(rank=rank, sequence=number, step=number)], 1.0)

        return run

    def read() -> None:
        while True:
            last_look = posted.is_set()
            seen.extend(sample.id for sample in samples_of(repository, "job-1", seen[-1] if seen else 0))
            if last_look:
                return

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            at_once(write(repository, 0), write(replica, 1), write(repository, 2))
        finally:
            posted.set()
        reading.result(WAIT_SECONDS)
    assert len(seen) == len(set(seen)) == 90


def test_the_loop_and_telemetry_do_not_disturb_each_other(
    repository: Repository, replica: Repository, make_job: MakeJob
) -> None:
    job_ids = ["job-1", "job-2"]
    for job_id in job_ids:
        make_job(job_id)

    def rounds() -> None:
        for turn in range(1, 11):
            for job_id in job_ids:
                tasks = [placed(job_id, Role.WORKER, rank) for rank in range(turn)]
                set_wanted(repository, job_id, Allocation(turn, 1), Directive.RUN, tasks, float(turn))
                for task in tasks:
                    put_task(repository, task.key, task.node, float(turn))
                repository.tasks.mark_unwanted([task.key for task in tasks], float(turn))
            repository.rounds.add(a_round(), [a_decision(job_id) for job_id in job_ids])

    def telemetry(job_id: str) -> Callable[[], None]:
        def run() -> None:
            for turn in range(1, 11):
                replica.memberships.report(job_id, a_membership(job_id, turn, step=turn))
                add_samples(replica, job_id, [a_sample(membership_epoch=turn, step=turn + 1)], 1.0)
                replica.events.add(job_id, "Something", "happened", {}, 1.0)

        return run

    at_once(rounds, *(telemetry(job_id) for job_id in job_ids))
    for job_id in job_ids:
        job = repository.jobs.get(job_id)
        assert (job.generation, job.wanted, job.membership_epoch, job.step) == (10, Allocation(10, 1), 10, 11)
        assert len(repository.tasks.select(job_id=job_id)) == 10
        assert len(samples_of(repository, job_id)) == 10
    assert len(repository.rounds.page().items) == 10


def test_a_writer_waits_for_others_no_longer_than_a_time() -> None:
    turn = OneWriter(seconds=0.05)
    with turn, pytest.raises(DatabaseNotAvailable, match="writers before this one"), turn:
        pass
    with turn:
        pass  # it is free again
