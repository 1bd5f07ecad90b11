"""The Alembic scripts: up, down, in agreement with the tables, and side by side with other replicas."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from tests.service.postgres_cluster import PostgresCluster
from tests.service.store.store_builders import (
    a_decision,
    a_membership,
    a_round,
    a_sample,
    add_samples,
    put_task,
    samples_of,
)

from optimus_contract.telemetry import SAMPLE_FIELDS, Sample, Usage
from optimus_scheduler.lifecycle import MembershipFormed
from optimus_scheduler.model import Quota, Role, TaskKey
from optimus_service.store.database.engine import (
    create_engine_from_url,
    current_revision,
    downgrade,
    head_revision,
    upgrade,
)
from optimus_service.store.database.tables import Base
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.repository import Repository


def _tables(url: str) -> set[str]:
    engine = create_engine_from_url(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_up_down_and_up_again(empty_database_url: str) -> None:
    assert current_revision(empty_database_url) is None
    upgrade(empty_database_url)
    assert current_revision(empty_database_url) == head_revision()
    assert _tables(empty_database_url) == {*Base.metadata.tables, "alembic_version"}
    downgrade(empty_database_url, "base")
    assert _tables(empty_database_url) == {"alembic_version"}
    upgrade(empty_database_url)
    upgrade(empty_database_url)
    assert current_revision(empty_database_url) == head_revision()


def test_migrations_and_tables_agree(database_url: str) -> None:
    engine = create_engine_from_url(database_url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"compare_type": True, "compare_server_default": True}
            )
            assert compare_metadata(context, Base.metadata) == []
    finally:
        engine.dispose()


def test_the_parts_that_alembic_does_not_compare_agree_too(database_url: str) -> None:
    """Partial indexes, primary keys and foreign keys with their actions, as the database sees them."""
    engine = create_engine_from_url(database_url)
    try:
        inspector = inspect(engine)
        for table in Base.metadata.sorted_tables:
            keys = inspector.get_pk_constraint(table.name)
            assert keys["constrained_columns"] == [column.name for column in table.primary_key.columns]
            stored = {(key["name"], key["options"].get("ondelete")) for key in inspector.get_foreign_keys(table.name)}
            assert stored == {(key.name, key.ondelete) for key in table.foreign_key_constraints}
        (alive,) = [index for index in inspector.get_indexes("tasks") if index["name"] == "ix_tasks_alive"]
        condition = str(alive["dialect_options"][f"{engine.dialect.name}_where"])
        assert "exited_at IS NULL" in condition
    finally:
        engine.dispose()


def test_jobs_of_objects_stay_jobs_of_these_objects(empty_database_url: str) -> None:
    uid = "6d1b9a52-7c4e-4d0c-9a51-1f1f3f3a2b3c"
    upgrade(empty_database_url)
    repository = Repository(create_engine_from_url(empty_database_url))
    for job_id, key, origin in (("by-object", None, uid), ("by-rest", "trainingjob:mine", None)):
        repository.jobs.create(job_id, {"name": job_id, "project": "p"}, "nonce", key, "hash", 1.0, origin)
    repository.close()
    downgrade(empty_database_url, "0006")
    assert _keys(empty_database_url) == {"by-object": f"trainingjob:{uid}", "by-rest": "trainingjob:mine"}
    upgrade(empty_database_url)
    assert _keys(empty_database_url) == {"by-object": None, "by-rest": "trainingjob:mine"}
    repository = Repository(create_engine_from_url(empty_database_url))
    assert {key: job.id for key, job in repository.jobs.of_objects([uid]).items()} == {uid: "by-object"}
    repository.close()


def _keys(url: str) -> dict[str, str | None]:
    engine = create_engine_from_url(url)
    try:
        with engine.connect() as connection:
            return dict(connection.execute(text("SELECT id, idempotency_key FROM jobs")).all())
    finally:
        engine.dispose()


_OLD_SAMPLES = """
INSERT INTO samples (job_id, membership_epoch, rank, sequence, workers, servers, at, received_at, step, n_steps,
    data_epoch, loss, loss_kind, n_examples, seconds, data_seconds, compute_seconds, push_seconds, wait_seconds,
    pull_seconds, sent_bytes, received_bytes, updates, usage, metrics)
VALUES (:job_id, 1, :rank, :sequence, 2, 1, 0.1, :received_at, :step, 2, 0.5, :loss, :loss_kind, 32, 0.25, 0, 0.1, 0,
    0, 0, 5, 0, :updates, :usage, NULL)
"""


def _old_samples() -> list[dict[str, Any]]:
    losses = [(2.5, "finite"), (None, "nan"), (None, "-inf"), (None, "none")]
    usage = '{"cpu_cores":0.5,"memory_bytes":100}'
    return [
        {
            "job_id": f"job-{number % 2}",
            "rank": number % 4 // 2,
            "sequence": 5000 * (number // 4),
            "received_at": float(number // 8),
            "step": number,
            "loss": losses[number % 4][0],
            "loss_kind": losses[number % 4][1],
            "updates": number if number > 15 else None,
            "usage": usage if number == 3 else None,
        }
        for number in range(24)
    ]


def test_samples_survive_both_ways(empty_database_url: str) -> None:
    """Revision 0016 gathers the samples of a post in one row."""
    upgrade(empty_database_url)
    engine = create_engine_from_url(empty_database_url)
    repository = Repository(engine)
    everything = text("SELECT * FROM samples ORDER BY step")
    try:
        for job_id in ("job-0", "job-1"):
            repository.jobs.create(job_id, {"name": "a", "project": "b"}, "nonce", None, "hash", 1.0)
        downgrade(empty_database_url, "0015")
        with engine.begin() as connection:
            connection.execute(text(_OLD_SAMPLES), _old_samples())
            before = [dict(row) for row in connection.execute(everything).mappings()]
        upgrade(empty_database_url)
        found = {job_id: samples_of(repository, job_id) for job_id in ("job-0", "job-1")}
        assert [sample.step for sample in found["job-0"]] == list(range(0, 24, 2))
        assert [sample.id for sample in found["job-1"]] == list(range(1, 13))
        assert {str(sample.loss) for samples in found.values() for sample in samples} == {"2.5", "nan", "-inf", "None"}
        assert found["job-1"][1].usage == Usage(cpu_cores=0.5, memory_bytes=100)
        again = found["job-1"][-1]
        posted = Sample(**{name: getattr(again, name) for name in SAMPLE_FIELDS})
        assert add_samples(repository, "job-1", [posted], 2.0).accepted == 0
        downgrade(empty_database_url, "0015")
        with engine.begin() as connection:
            after = [dict(row) for row in connection.execute(everything).mappings()]
        assert [row | {"id": 0} for row in after] == [row | {"id": 0} for row in before]
    finally:
        repository.close()


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"loss": None}, "none"),
        ({"seconds": 0.0}, "finite"),
        ({"loss": float("nan")}, "nan"),
        ({"metrics": {}}, "finite"),
    ],
)
def test_a_post_of_new_samples_is_a_row_for_each_after_a_downgrade(
    empty_database_url: str, told: dict[str, Any], kind: str
) -> None:
    """What all samples of a post have in common is left out of its document."""
    upgrade(empty_database_url)
    engine = create_engine_from_url(empty_database_url)
    repository = Repository(engine)
    try:
        repository.jobs.create("job-0", {"name": "a", "project": "b"}, "nonce", None, "hash", 1.0)
        add_samples(repository, "job-0", [a_sample(sequence=n, step=n + 1, **told) for n in range(3)], 2.0)
        downgrade(empty_database_url, "0015")
        with engine.begin() as connection:
            rows = connection.execute(text("SELECT step, loss_kind FROM samples ORDER BY step")).all()
        assert [*map(tuple, rows)] == [(step, kind) for step in (1, 2, 3)]
    finally:
        repository.close()


def test_replicas_that_start_together_take_turns(empty_database_url: str) -> None:
    script = "import sys; from optimus_service.store.database.engine import upgrade; upgrade(sys.argv[1])"
    replicas = [subprocess.Popen([sys.executable, "-c", script, empty_database_url]) for _ in range(2)]
    assert [replica.wait(60) for replica in replicas] == [0, 0]
    assert current_revision(empty_database_url) == head_revision()


def test_a_database_without_tables_is_not_ready(empty_database_url: str) -> None:
    repository = Repository(create_engine_from_url(empty_database_url))
    with pytest.raises(DatabaseNotAvailable, match="jobs"):
        repository.ping()
    repository.close()


def test_a_migration_on_postgresql_gives_up_on_a_table_in_use(
    postgres_cluster: PostgresCluster, migrated_postgres: str
) -> None:
    name = postgres_cluster.create_database(template=migrated_postgres)
    engine = create_engine_from_url(postgres_cluster.url(name))
    with engine.begin() as reader:
        reader.exec_driver_sql("SELECT 1 FROM jobs")
        with pytest.raises(DatabaseNotAvailable, match="lock timeout"):
            downgrade(postgres_cluster.url(name), "base")
    engine.dispose()
    assert current_revision(postgres_cluster.url(name)) == head_revision()
    postgres_cluster.drop_database(name)


def _told(repository: Repository, job_id: str) -> list[Any]:
    """All that is stored beside a job."""
    return [
        repository.memberships.of_job(job_id),
        repository.events.page(job_id).items,
        repository.rounds.decisions(job_id).items,
        repository.rounds.page().items,
        repository.tasks.select(job_id=job_id),
        [(sample.step, sample.loss, sample.sequence) for sample in samples_of(repository, job_id)],
        repository.projects.all(),
    ]


def test_jobs_of_a_release_without_users_have_no_owner_and_stay_as_they_are(database_url: str) -> None:
    spec = {"name": "digits", "project": "vision", "labels": {"team": "a"}}
    repository = Repository(create_engine_from_url(database_url))
    repository.jobs.create("digits-1", spec, "nonce", "key", "hash", 1.0, None, "ada")
    repository.projects.put(Quota("vision", share=0.25), 1.0)
    put_task(repository, TaskKey("digits-1", Role.WORKER, 0), "node-1", 2.0)
    repository.memberships.report("digits-1", a_membership("digits-1"))
    repository.jobs.advance("digits-1", MembershipFormed(1), 3.0)
    repository.rounds.add(a_round(), [a_decision("digits-1", message="It was given its first tasks.")])
    add_samples(repository, "digits-1", [a_sample(sequence=number, step=number + 1) for number in range(3)], 4.0)
    before, told = repository.jobs.get("digits-1"), _told(repository, "digits-1")
    repository.close()
    downgrade(database_url, "0014")
    upgrade(database_url)
    repository = Repository(create_engine_from_url(database_url))
    as_before = replace(before, owner=None, step_at=None, formed_at=None)
    assert repository.jobs.get("digits-1") == as_before
    assert _told(repository, "digits-1") == told
    assert repository.jobs.page(projects={"vision"}, labels={"team": "a"}).items == (as_before,)
    assert (repository.people.users(), repository.people.tokens(), repository.people.audit().items) == ([], [], ())
    repository.close()
