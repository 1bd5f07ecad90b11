"""A job takes the same room after many samples as after some: what is known of them takes their place."""

from __future__ import annotations

from sqlalchemy import text
from tests.service.store.store_builders import MakeJob, a_sample, add_samples, samples_of

from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.histories import SAMPLES_KEPT
from optimus_service.store.records import KeptHistory
from optimus_service.store.repository import Repository
from optimus_service.store.samples.counting import BLOCK


def fill(repository: Repository, first: int, n: int) -> None:
    """Samples of one rank, in posts of a thousand."""
    for begin in range(first, first + n, 1000):
        numbers = range(begin, min(begin + 1000, first + n))
        posted = [a_sample(sequence=number, step=number + 1) for number in numbers]
        assert add_samples(repository, "job-1", posted, 1.0).accepted == len(numbers)


def test_only_the_newest_samples_stay_beside_what_is_known(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    fill(repository, 0, 5000)
    repository.histories.put({"job-1": KeptHistory(4500, b"what is known of 4500")})
    assert samples_of(repository, "job-1", limit=1000) == []
    assert samples_of(repository, "job-1", after_id=2000)[0].id == 2001, "of a post all stay or none"
    assert repository.histories.of_jobs(["job-1"]) == {"job-1": KeptHistory(4500, b"what is known of 4500")}
    assert repository.histories.reach(["job-1", "job-2"]) == {"job-1": 4500}
    assert [sample.id for sample in repository.samples.newest("job-1", 2)] == [5000, 4999]
    fill(repository, 5000, 10)
    assert repository.samples.newest("job-1", 1)[0].id == 5010, "ids go on"


def test_nothing_goes_that_is_not_known(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    fill(repository, 0, 3000)
    repository.histories.put({"job-1": KeptHistory(SAMPLES_KEPT - 1, b"little")})
    assert samples_of(repository, "job-1", limit=1)[0].id == 1


def test_each_sample_counts_once_for_ever(repository: Repository, make_job: MakeJob, database_url: str) -> None:
    """When its row and the bits that said so are gone, too."""
    make_job()
    fill(repository, 0, 4 * BLOCK)
    repository.histories.put({"job-1": KeptHistory(4 * BLOCK, b"all")})
    engine = create_engine_from_url(database_url)
    with engine.connect() as connection:
        numbers = connection.scalars(text("SELECT number FROM sample_blocks ORDER BY number")).all()
    engine.dispose()
    assert numbers == [2, 3]
    again = [a_sample(sequence=number) for number in (0, 1, BLOCK, 3 * BLOCK, 4 * BLOCK)]
    added = add_samples(repository, "job-1", again, 2.0)
    assert added.accepted == 1, "the last one is new"
    assert {each.why for each in added.ignored} == {"duplicate"}
    assert add_samples(repository, "job-1", [a_sample(rank=1, sequence=0)], 2.0).accepted == 1, "of another rank"
    assert add_samples(repository, "job-1", again, 2.0).accepted == 0
