"""Opening the database, and what happens when it is not there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import event
from tests.service.postgres_cluster import PostgresCluster
from tests.service.store.store_builders import (
    MakeJob,
    a_decision,
    a_membership,
    a_round,
    a_sample,
    add_samples,
    samples_of,
)

from optimus_service.metrics.registry import Metrics, NoMetrics
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.errors import DatabaseNotAvailable, InvalidDatabaseUrl
from optimus_service.store.records import SampleRecord
from optimus_service.store.repository import Repository


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgresql://me:secret@db/optimus", "psycopg"),
        ("postgresql+psycopg://db/optimus", "psycopg"),
        ("sqlite:////var/lib/optimus.db", "pysqlite"),
    ],
)
def test_urls_name_the_database_not_the_driver(url: str, driver: str) -> None:
    assert create_engine_from_url(url).dialect.driver == driver


@pytest.mark.parametrize(
    "url",
    ["", "optimus.db", "mysql://db/optimus", "sqlite://", "sqlite:///:memory:", "postgresql+psycopg2://db/optimus"],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidDatabaseUrl):
        create_engine_from_url(url)


def test_sqlite_is_set_up_for_many_threads(tmp_path: Path) -> None:
    engine = create_engine_from_url(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.connect() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    engine.dispose()
    normal = 1
    assert found == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 10_000, "synchronous": normal}


def test_a_database_that_is_not_there_is_not_available(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path / 'no' / 'such.db'}", f"postgresql://me@/optimus?host={tmp_path}"):
        repository = Repository(create_engine_from_url(url))
        with pytest.raises(DatabaseNotAvailable):
            repository.ping()
        with pytest.raises(DatabaseNotAvailable):
            repository.events.add(None, "Something", "happened", {}, 1.0)
        with pytest.raises(DatabaseNotAvailable):
            upgrade(url)


def test_a_file_that_is_no_database_is_not_available(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("not a database, but long enough to have a header" * 10)
    with pytest.raises(DatabaseNotAvailable):
        Repository(create_engine_from_url(f"sqlite:///{path}")).ping()


def test_a_message_has_no_values_in_it(tmp_path: Path) -> None:
    repository = Repository(create_engine_from_url(f"sqlite:///{tmp_path / 'empty.db'}"))
    with pytest.raises(DatabaseNotAvailable) as refused:
        repository.jobs.create("job-1", {"name": "a", "project": "b"}, "the-nonce", None, "hash", 1.0)
    repository.close()
    assert "nonce" not in str(refused.value)
    assert "jobs" in str(refused.value)


# --- effort ----------------------------------------------------------------------------------------------------------


def test_the_number_of_statements_does_not_grow_with_the_number_of_rows(
    repository: Repository, make_job: MakeJob, database_url: str
) -> None:
    def statements(n_jobs: int) -> int:
        """Statements of one look at everything, with one more post and round before it."""
        for number in range(n_jobs):
            make_job(f"job-{n_jobs}-{number}")
            repository.memberships.report(f"job-{n_jobs}-{number}", a_membership(f"job-{n_jobs}-{number}"))
        job_ids = [job.id for job in repository.jobs.active()]
        count = 0

        def increase(*_: object) -> None:
            nonlocal count
            count += 1

        engine = repository._engine
        event.listen(engine, "before_cursor_execute", increase)
        repository.rounds.add(a_round(), [a_decision(job_id) for job_id in job_ids])
        post = [a_sample(sequence=number) for number in range(10 * n_jobs)]
        add_samples(repository, job_ids[-1], post, 1.0)
        repository.jobs.page()
        repository.jobs.active()
        repository.wanted.of_active_jobs()
        repository.rounds.latest_decisions(job_ids)
        repository.observed()
        event.remove(engine, "before_cursor_execute", increase)
        return count

    assert statements(1) == statements(10)


# --- survival --------------------------------------------------------------------------------------------------------


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    """Each takes it to WAL, and SQLite waits for nobody while it does."""
    for number in range(100):
        together = Barrier(8)

        def opened(url: str, together: Barrier = together) -> str | None:
            engine = create_engine_from_url(url)
            together.wait()
            try:
                with engine.connect() as connection:
                    return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
            finally:
                engine.dispose()

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(opened, 8 * [f"sqlite:///{tmp_path / f'{number}.db'}"])) == {"wal"}


_WRITER = """
import sys
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository
from tests.service.store.store_builders import a_sample, add_samples

repository = Repository(create_engine_from_url(sys.argv[1]))
number = 0
while True:
    repository.jobs.create(f"job-{number}", {"name": "a", "project": "b"}, "nonce", None, "hash", float(number))
    add_samples(repository, f"job-{number}", [a_sample()], 1.0)
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
"""


def test_what_was_acknowledged_survives_kill_9(database_url: str, repository: Repository) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", _WRITER, database_url]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        while (line := writer.stdout.readline()).strip() != "20":
            assert line, "the writer ended by itself"
        writer.send_signal(signal.SIGKILL)
        acknowledged = 20 + len(writer.stdout.read().split())
    for number in range(acknowledged + 1):
        assert len(samples_of(repository, f"job-{number}")) == 1
    assert repository.jobs.create("after", {"name": "a", "project": "b"}, "nonce", None, "hash", 1.0)[1]


_POSTERS = """
import sys
import threading
from optimus_contract.telemetry import SampleColumns
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.records import PostedSamples
from optimus_service.store.repository import Repository
from optimus_service.store.samples.sample_queue import SampleQueue
from tests.service.store.store_builders import a_sample, add_samples

repository = Repository(create_engine_from_url(sys.argv[1]))
queue = SampleQueue(repository.samples.add)
said = threading.Lock()

def post(rank):
    for number in range(10**6):
        samples = [a_sample(rank=rank, workers=4, sequence=3 * number + n, step=number) for n in range(3)]
        queue.put(PostedSamples(f"job-{rank % 2}", SampleColumns.of(samples), 1.0)).result()
        with said:
            sys.stdout.write(f"{rank} {number}\\n")
            sys.stdout.flush()

for rank in range(4):
    threading.Thread(target=post, args=(rank,), daemon=True).start()
threading.Event().wait()
"""


def test_samples_that_were_acknowledged_together_survive_kill_9(
    database_url: str, repository: Repository, make_job: MakeJob
) -> None:
    """Four post at once, so that their posts share transactions: none is acknowledged before the commit."""
    for job_id in ("job-0", "job-1"):
        make_job(job_id)
    command = [sys.executable, "-c", _POSTERS, database_url]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as posters:
        assert posters.stdout is not None
        lines = [posters.stdout.readline() for _ in range(60)]
        assert all(lines), "the posters ended by themselves"
        posters.send_signal(signal.SIGKILL)
        lines += posters.stdout.read().splitlines()
    acknowledged = {(int(rank), int(number)) for rank, number in (line.split() for line in lines)}
    for job_id in ("job-0", "job-1"):
        stored = stored_of(repository, job_id)
        keys = [(sample.rank, sample.sequence) for sample in stored]
        assert len(keys) == len(set(keys)), "a sample was counted twice"
        wanted = {(rank, number) for rank, number in acknowledged if f"job-{rank % 2}" == job_id}
        assert {(rank, 3 * number + n) for rank, number in wanted for n in range(3)} <= set(keys)
        assert [sample.id for sample in stored] == list(range(1, len(stored) + 1))


def stored_of(repository: Repository, job_id: str) -> list[SampleRecord]:
    """All of a job's samples, page by page."""
    stored: list[SampleRecord] = []
    while page := samples_of(repository, job_id, stored[-1].id if stored else 0, limit=100):
        stored += page
    return stored


# --- a server that does not answer -----------------------------------------------------------------------------------


def test_a_frozen_server_is_not_waited_for(own_postgres: PostgresCluster) -> None:
    url = own_postgres.url(own_postgres.create_database())
    upgrade(url)
    repository = Repository(create_engine_from_url(url, answer_seconds=1.0))
    repository.events.add(None, "Something", "happened", {}, 1.0)
    with own_postgres.frozen():
        for _ in range(2):  # on a connection that is open, and on a new one
            with pytest.raises(DatabaseNotAvailable):
                repository.events.add(None, "Something", "is lost", {}, 2.0)
    repository.events.add(None, "Something", "happened", {}, 3.0)
    assert [event.at for event in repository.events.page(None).items] == [3.0, 1.0]
    repository.close()


# --- a disk that is full ---------------------------------------------------------------------------------------------


def test_a_database_that_cannot_grow_is_told_by_the_metrics(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optimus.db'}"
    upgrade(url)
    metrics = Metrics()
    engine = create_engine_from_url(url)
    repository = Repository(engine, metrics.observe_transaction)
    metrics.show_state(lambda: NoMetrics.NOT_LEADING)
    repository.events.add(None, "Something", "fits", {}, 1.0)
    assert "optimus_database_up 1.0" in metrics.text().decode()

    def no_room(connection: Any, *_: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size for the least

    event.listen(engine, "checkout", no_room)
    with pytest.raises(DatabaseNotAvailable) as full:
        repository.events.add(None, "Something", "does not fit" * 10_000, {}, 2.0)
    assert full.value.for_users.startswith("the database's disk is full")
    repository.ping()
    assert "optimus_database_up 0.0" in metrics.text().decode()
    event.remove(engine, "checkout", no_room)
    engine.dispose()
    repository.events.add(None, "Something", "fits again", {}, 3.0)
    assert "optimus_database_up 1.0" in metrics.text().decode()
    repository.close()


def test_a_read_only_file_is_told_as_such(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optimus.db'}"
    upgrade(url)
    engine = create_engine_from_url(url)
    repository = Repository(engine)
    event.listen(engine, "checkout", lambda connection, *_: connection.execute("PRAGMA query_only = on"))
    with pytest.raises(DatabaseNotAvailable) as read_only:
        repository.events.add(None, "Something", "cannot be written", {}, 1.0)
    assert read_only.value.for_users.startswith("the database is read-only")
    assert not repository.events.page(None).items
    repository.close()


# --- a file that is taken away ---------------------------------------------------------------------------------------


def _away(path: Path) -> Path:
    return path.with_name(f"{path.name}.away")


def _moved(path: Path) -> None:
    path.rename(_away(path))


def _replaced(path: Path) -> None:
    shutil.copy(path, _away(path))
    _away(path).replace(path)


def _recreated(path: Path) -> None:
    path.rename(_away(path))
    path.touch()


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("take_away", [_moved, Path.unlink, _replaced, _recreated])
def test_nothing_is_acknowledged_after_a_file_was_taken_away(
    tmp_path: Path, take_away: Callable[[Path], None], end: str
) -> None:
    url = f"sqlite:///{tmp_path / 'optimus.db'}"
    upgrade(url)
    repository = Repository(create_engine_from_url(url))
    with ThreadPoolExecutor(4) as threads:  # several connections: those that are open, and one that is new
        together = Barrier(4)

        def add(_number: int) -> None:
            with repository.write():
                pass
            with repository._read():
                together.wait()

        list(threads.map(add, range(4)))
        repository.events.add(None, "Something", "is kept", {}, 1.0)
        take_away(tmp_path / f"optimus.db{end}")

        def refused(_number: int) -> str:
            with pytest.raises(DatabaseNotAvailable) as missing:
                repository.events.add(None, "Something", "would be lost", {}, 2.0)
            return missing.value.for_users

        assert all("moved, deleted or replaced" in words for words in threads.map(refused, range(16)))
    with pytest.raises(DatabaseNotAvailable, match="put it back"):
        repository.ping()
    repository.close()


def test_no_file_is_made_where_the_database_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'data' / 'optimus.db'}"
    (tmp_path / "data").mkdir()
    upgrade(url)
    engine = create_engine_from_url(url)
    repository = Repository(engine)
    repository.ping()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    (tmp_path / "data").mkdir()
    with engine.connect() as connection, pytest.raises(DatabaseNotAvailable):
        connection.begin()
    engine.dispose()
    with pytest.raises(DatabaseNotAvailable, match="moved, deleted or replaced"):
        repository.ping()
    assert not list((tmp_path / "data").iterdir())


def test_a_file_that_is_put_back_is_gone_on_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'data' / 'optimus.db'}"
    (tmp_path / "data").mkdir()
    upgrade(url)
    repository = Repository(create_engine_from_url(url))
    repository.events.add(None, "Something", "happened", {}, 1.0)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(DatabaseNotAvailable):
        repository.events.add(None, "Something", "is refused", {}, 2.0)
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    repository.events.add(None, "Something", "happened", {}, 3.0)
    repository.close()
    again = Repository(create_engine_from_url(url))
    assert [event.at for event in again.events.page().items] == [3.0, 1.0]
    again.close()


def test_a_transaction_during_which_the_file_goes_is_not_acknowledged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optimus.db'}"
    upgrade(url)
    repository = Repository(create_engine_from_url(url))

    def add() -> None:
        with repository.write() as transaction:
            transaction.events.add(None, "Something", "would be lost", {}, 1.0)
            _moved(tmp_path / "optimus.db")

    with pytest.raises(DatabaseNotAvailable):
        add()
    _away(tmp_path / "optimus.db").rename(tmp_path / "optimus.db")
    assert not repository.events.page().items
    repository.close()
