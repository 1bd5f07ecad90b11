"""`optimus secrets`: keys, and variables of jobs in the database that are encrypted anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Optimus

from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.repository import Repository

VALUE = "hf_a-value-that-must-stay-here"


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'optimus.db'}"
    upgrade(url)
    repository = Repository(create_engine_from_url(url))
    spec = {"name": "digits", "project": "default", "environment": {"HF_TOKEN": VALUE}}
    repository.jobs.create("digits-1", spec, "nonce", None, "hash", 1.0)
    repository.close()
    return url


def test_variables_are_encrypted_and_decrypted(
    optimus: Optimus, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (optimus("secrets", "key").stdout.strip() for _ in range(2))
    assert first != second
    monkeypatch.setenv("OPTIMUS_ENCRYPTION_KEYS", first)
    done = optimus("secrets", "rotate", "--database-url", database, "--json")
    assert json.loads(done.stdout) == {"changed": 1, "encrypted": 1, "clear": 0, "unreadable": 0}
    monkeypatch.setenv("OPTIMUS_ENCRYPTION_KEYS", second)
    lost = optimus("secrets", "rotate", "--database-url", database)
    assert lost.exit_code == 1
    assert "1 jobs are encrypted with a key that OPTIMUS_ENCRYPTION_KEYS does not have" in lost.stderr
    monkeypatch.setenv("OPTIMUS_ENCRYPTION_KEYS", f"{second},{first}")
    assert (
        "1 jobs changed; 1 are encrypted, 0 in clear" in optimus("secrets", "rotate", "--database-url", database).stdout
    )
    monkeypatch.setenv("OPTIMUS_ENCRYPTION_KEYS", second)
    assert (
        "1 jobs changed; 0 are encrypted, 1 in clear"
        in optimus("secrets", "decrypt", "--database-url", database).stdout
    )


@pytest.mark.parametrize("command", ["rotate", "decrypt"])
def test_without_a_key_or_a_database_it_says_what_is_missing(
    optimus: Optimus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    refused = optimus("secrets", command, "--data-directory", str(tmp_path))
    assert (refused.exit_code, "OPTIMUS_ENCRYPTION_KEYS is not set" in refused.stderr) == (2, True)
    monkeypatch.setenv("OPTIMUS_ENCRYPTION_KEYS", optimus("secrets", "key").stdout.strip())
    refused = optimus("secrets", command, "--data-directory", str(tmp_path))
    assert (refused.exit_code, "there is no database" in refused.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []
