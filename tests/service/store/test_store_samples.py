"""Telemetry in the database: accounting, order, odd numbers."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from tests.service.store.store_builders import MakeJob, a_membership, a_sample, add_samples, records_in, samples_of

from optimus_service.store.errors import InvalidValue
from optimus_service.store.records import AddedSamples, IgnoredSample
from optimus_service.store.repository import Repository


def test_a_sample_comes_back_as_it_was(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    sample = a_sample(
        membership_epoch=1,
        rank=1,
        sequence=3,
        servers=3,
        at=0.1 + 0.2,
        step=12,
        n_steps=4,
        data_seconds=0.01,
        compute_seconds=0.02,
        push_seconds=0.03,
        wait_seconds=0.04,
        pull_seconds=0.05,
        sent_bytes=2**40,
        received_bytes=2**62,
        staleness=1.5,
        usage={"cpu_cores": 0.9, "memory_bytes": 2**33},
        gradients={"square": -0.5, "variance": 3.0},
    )
    assert add_samples(repository, "job-1", [sample], 33.5) == AddedSamples(1, ())
    (stored,) = samples_of(repository, "job-1")
    assert stored.received_at == 33.5
    assert {name: value for name, value in asdict(stored).items() if name in asdict(sample)} == asdict(sample)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 0.0, 1e-320, -1e308])
def test_any_loss_survives(repository: Repository, make_job: MakeJob, loss: float) -> None:
    make_job()
    add_samples(repository, "job-1", [a_sample(loss=loss)], 1.0)
    for stored in (samples_of(repository, "job-1")[0].loss, repository.jobs.get("job-1").loss):
        assert stored is not None
        assert stored == loss or (math.isnan(stored) and math.isnan(loss))


def test_progress_follows_the_samples(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    add_samples(repository, "job-1", [a_sample(step=10, n_steps=10, data_epoch=0.2, loss=2.0)], 1.0)
    add_samples(repository, "job-1", [a_sample(sequence=1, step=20, n_steps=10, data_epoch=0.4, loss=1.0)], 2.0)
    late = a_sample(rank=1, step=15, n_steps=5, data_epoch=0.3, loss=1.5)
    add_samples(repository, "job-1", [late], 3.0)
    job = repository.jobs.get("job-1")
    assert (job.first_step, job.step, job.epoch, job.loss) == (1, 20, 0.4, 1.0)


def test_a_repeated_post_is_counted_once(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    post = [a_sample(sequence=number, step=number + 1) for number in range(5)]
    assert add_samples(repository, "job-1", post, 1.0).accepted == 5
    before = repository.jobs.get("job-1")
    again = add_samples(repository, "job-1", post, 2.0)
    assert again == AddedSamples(0, tuple(IgnoredSample(index, "duplicate") for index in range(5)))
    assert repository.jobs.get("job-1") == before
    assert len(samples_of(repository, "job-1")) == 5


def test_what_is_ignored_is_named_by_its_place(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    repository.memberships.report("job-1", a_membership(epoch=1))
    repository.memberships.report("job-1", a_membership(epoch=2, step=50))
    add_samples(repository, "job-1", [a_sample(sequence=7, step=5)], 1.0)
    post = [
        a_sample(membership_epoch=9),
        a_sample(sequence=8, step=6),
        a_sample(sequence=7, step=5),
        a_sample(sequence=9, step=60),
        a_sample(sequence=8, step=6),
        a_sample(membership_epoch=3, step=61),
    ]
    assert add_samples(repository, "job-1", post, 2.0) == AddedSamples(
        2,
        (
            IgnoredSample(0, "unknown_membership"),
            IgnoredSample(2, "duplicate"),
            IgnoredSample(3, "old_membership"),
            IgnoredSample(4, "duplicate"),
        ),
    )


def test_jobs_do_not_share_sequences(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("job-1", "job-2"):
        make_job(job_id)
        assert add_samples(repository, job_id, [a_sample()], 1.0).accepted == 1
    assert len(samples_of(repository, "job-2")) == 1


def test_a_full_post_goes_in_at_once(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    post = [a_sample(sequence=number, step=number) for number in range(1000)]
    assert add_samples(repository, "job-1", post, 1.0).accepted == 1000
    assert len(samples_of(repository, "job-1", limit=1000)) == 1000


def test_reading_goes_on_from_the_last_id(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    for numbers in (range(3), range(3, 5)):
        add_samples(repository, "job-1", [a_sample(sequence=number) for number in numbers], 1.0)
    first = samples_of(repository, "job-1", limit=2)
    assert [sample.sequence for sample in first] == [0, 1, 2], "what came in one post is given together"
    rest = samples_of(repository, "job-1", after_id=first[-1].id, limit=3)
    assert [sample.sequence for sample in (*first, *rest)] == [0, 1, 2, 3, 4]
    assert samples_of(repository, "job-1", after_id=rest[-1].id) == []


def test_samples_of_many_jobs_at_once(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("job-1", "job-2", "job-3"):
        make_job(job_id)
    for first in (0, 5):  # so that ids of one job are not in one piece
        for job_id in ("job-1", "job-2"):
            add_samples(repository, job_id, [a_sample(sequence=first + n) for n in range(5)], 1.0)
    one, two = samples_of(repository, "job-1"), samples_of(repository, "job-2")
    after = {"job-1": one[2].id, "job-2": 0, "job-3": 0, "unknown": 0}
    found = repository.samples.after_each(after, 3)
    assert {job_id: records_in(batches) for job_id, batches in found.items()} == {"job-1": one[3:], "job-2": two[:5]}
    newest = repository.samples.newest_of_each(["job-1", "job-2", "job-3"], 3)
    assert newest == {"job-1": repository.samples.newest("job-1", 3), "job-2": repository.samples.newest("job-2", 3)}
    assert repository.samples.after_each({}, 4) == {}


def test_the_newest_samples_come_first(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    add_samples(repository, "job-1", [a_sample(sequence=number) for number in range(5)], 1.0)
    assert [sample.sequence for sample in repository.samples.newest("job-1", limit=2)] == [4, 3]
    assert repository.samples.newest("ghost", limit=2) == []


def test_a_number_beyond_64_bits_is_refused_as_a_whole(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    with pytest.raises(InvalidValue):
        add_samples(repository, "job-1", [a_sample(), a_sample(sequence=1, sent_bytes=2**63)], 1.0)
    assert samples_of(repository, "job-1") == []
    assert repository.jobs.get("job-1").first_step is None
