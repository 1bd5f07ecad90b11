"""Variables of jobs are encrypted in the database: what is in its rows, and how keys are changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from optimus_scheduler.lifecycle import PauseRequested
from optimus_service.observe.spec import UnreadableSpecification, spec_of
from optimus_service.process.data_directory import CannotStart
from optimus_service.server import seal_variables
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, downgrade, upgrade
from optimus_service.store.database.sealing import SEALED, Keys, new_key
from optimus_service.store.repository import Repository

Open = Callable[..., Repository]
VARIABLES = {"HF_TOKEN": "hf_a-value-that-must-stay-here", "EMPTY": ""}
SPEC: dict[str, Any] = {"name": "digits", "project": "default", "task": "a:b", "environment": VARIABLES}
OLD, NEW = new_key(), new_key()


@pytest.fixture
def opened(database_url: str) -> Iterator[Open]:
    """Repositories of one database, each with the keys that it is given."""
    found: list[Repository] = []

    def open_one(*keys: str) -> Repository:
        found.append(Repository(create_engine_from_url(database_url, keys=Keys(keys) if keys else None)))
        return found[-1]

    yield open_one
    for repository in found:
        repository.close()


def add(repository: Repository, job_id: str, **changes: Any) -> None:
    repository.jobs.create(job_id, {**SPEC, **changes}, "nonce", None, "hash", 1.0)


def rows(url: str) -> dict[str, str]:
    """The specifications of all jobs as the database has them."""
    engine = create_engine_from_url(url)
    try:
        with engine.connect() as connection:
            return {row.id: row.spec for row in connection.execute(text("SELECT id, spec FROM jobs"))}
    finally:
        engine.dispose()


def test_rows_have_neither_names_nor_values_and_readers_have_both(opened: Open, database_url: str) -> None:
    repository = opened(NEW)
    add(repository, "one")
    assert repository.jobs.get("one").spec == SPEC
    job = repository.jobs.get("one")
    assert repository.jobs.set_spec("one", job.spec, {**job.spec, "priority": 2.0}, {"priority": (1.0, 2.0)}, 2.0)
    repository.jobs.advance("one", PauseRequested(has_tasks=False), 3.0)
    (stored,) = rows(database_url).values()
    assert not [word for word in (*VARIABLES, VARIABLES["HF_TOKEN"]) if word in stored]
    assert repository.jobs.active()[0].asked.environment == VARIABLES


def test_a_job_without_variables_is_stored_as_before(opened: Open, database_url: str) -> None:
    add(opened(NEW), "one", environment={})
    assert json.loads(rows(database_url)["one"]) == {**SPEC, "environment": {}}


def test_keys_are_changed_without_loss(opened: Open, database_url: str) -> None:
    add(opened(), "clear")
    add(opened(OLD), "old")
    both = opened(NEW, OLD)
    assert both.jobs.get("old").spec == both.jobs.get("clear").spec == SPEC
    assert both.variables.rewrite() == 2
    assert both.variables.rewrite() == 0
    assert all(Fernet(NEW).decrypt(json.loads(each)[SEALED]) for each in rows(database_url).values())
    only_new = opened(NEW)
    assert [job.spec for job in only_new.jobs.active()] == [SPEC, SPEC]
    assert (only_new.variables.stored().sealed, only_new.variables.stored().unreadable) == (2, 0)
    assert only_new.variables.rewrite(clear=True) == 2
    assert [json.loads(each) for each in rows(database_url).values()] == [SPEC, SPEC]


def test_many_jobs_are_changed_in_some_transactions(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimus_service.store.jobs.sealed_rows._BATCH", 3)
    for number in range(10):
        add(opened(), f"job-{number}")
    assert opened(NEW).variables.rewrite() == 10
    assert opened(NEW).variables.stored().sealed == 10


def test_a_job_whose_key_is_lost_waits_and_says_why(opened: Open) -> None:
    add(opened(OLD), "one")
    other = opened(NEW)
    assert other.variables.rewrite() == 0, "what cannot be opened stays as it is"
    job = other.jobs.get("one")
    assert job.asked.environment == {}
    with pytest.raises(UnreadableSpecification, match="OPTIMUS_ENCRYPTION_KEYS"):
        spec_of(job)
    other.jobs.advance("one", PauseRequested(has_tasks=False), 2.0)
    assert opened(OLD).jobs.get("one").spec == {**SPEC, "paused": True}


def test_a_start_encrypts_what_is_in_clear_and_says_what_is_not(opened: Open, tmp_path: Path) -> None:
    def start(*keys: str) -> list[tuple[str, Any]]:
        settings = Settings(data_directory=tmp_path, encryption_keys=",".join(keys) or None)
        with structlog.testing.capture_logs() as lines:
            seal_variables(settings, opened(*keys))
        assert VARIABLES["HF_TOKEN"] not in repr(lines)
        return [(line["log_level"], line.get("jobs")) for line in lines]

    add(opened(), "one")
    assert start() == [("warning", 1)]
    assert start(OLD) == [("info", 1)]
    assert start(OLD) == []
    assert start(NEW, OLD) == [("info", 1)]
    assert start(OLD) == [("error", 1)]
    with pytest.raises(CannotStart, match="1 jobs have encrypted variables and OPTIMUS_ENCRYPTION_KEYS is not set"):
        start()


def test_an_earlier_release_gets_no_encrypted_rows(opened: Open, database_url: str) -> None:
    repository = opened(NEW)
    add(repository, "one", name='"environment_sealed":"in a text"')
    with pytest.raises(RuntimeError, match="1 jobs have encrypted variables"):
        downgrade(database_url, "0015")
    repository.variables.rewrite(clear=True)
    repository.close()
    downgrade(database_url, "0015")
    upgrade(database_url)
    assert opened().jobs.get("one").spec["environment"] == VARIABLES


@given(
    environment=st.dictionaries(st.text(), st.text()),
    others=st.dictionaries(st.text().filter(lambda name: name not in ("environment", SEALED)), st.text()),
)
def test_what_is_sealed_comes_back_and_is_not_seen(environment: dict[str, str], others: dict[str, str]) -> None:
    document = {**others, "environment": environment}
    sealed = Keys([NEW]).seal(document)
    assert Keys([OLD, NEW]).open(sealed) == document
    assert Keys([NEW]).seal(sealed) == sealed
    assert ("environment" in sealed) is (not environment)
    assert Keys([OLD]).open(sealed) == sealed
    assert Keys([NEW]).is_current(sealed)


@pytest.mark.parametrize("keys", ["short", f"{NEW},short", "é" * 44], ids=["short", "one-short", "no-ascii"])
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path, keys: str) -> None:
    with pytest.raises(ValueError, match="OPTIMUS_ENCRYPTION_KEYS must be keys") as refused:
        Settings(data_directory=tmp_path, encryption_keys=keys)
    assert NEW not in str(refused.value)
