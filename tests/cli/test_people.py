"""`optimus user`, `token`, `whoami`, `audit`, and `list --mine`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli import builders
from tests.cli.conftest import Optimus, ScriptedService

MOMENT = "2026-11-25T09:14:43Z"
USER = {
    "name": "ada", "kind": "person", "role": None, "projects": {"vision": "member", "nlp": "viewer"},
    "created_at": MOMENT, "created_by": "bootstrap",
}  # fmt: skip
TOKEN = {
    "id": "0123456789ab", "user": "ada", "name": "laptop", "scope": "submit", "projects": None, "created_at": MOMENT,
    "created_by": "bootstrap", "expires_at": None, "revoked_at": None, "last_used_at": MOMENT,
}  # fmt: skip


def body(scripted: ScriptedService) -> Any:
    return scripted.requests[-1].body


def test_users_are_made_changed_and_listed(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("POST", "/v1/users/ada", USER)
    scripted.on("PUT", "/v1/users/ada", USER)
    scripted.on("GET", "/v1/users", {"users": [USER]})
    rights = {"kind": "person", "role": None, "projects": {"vision": "member", "nlp": "viewer"}}
    for command in ("create", "set"):
        done = optimus("user", command, "ada", "--member", "vision", "--viewer", "nlp", "--url", scripted.url)
        assert done.exit_code == 0, done.stderr
        assert body(scripted) == rights
    listed = optimus("user", "list", "--url", scripted.url)
    assert "nlp (viewer), vision (member)" in " ".join(listed.stdout.split())
    both = optimus("user", "create", "ada", "--member", "vision", "--viewer", "vision", "--url", scripted.url)
    assert (both.exit_code, "vision" in both.stderr) == (2, True)


def test_a_new_token_alone_is_on_standard_output(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("POST", "/v1/tokens", {"token": TOKEN, "secret": "optimus-user-x"})
    flags = ["--user", "ada", "--scope", "read", "--project", "vision", "--days", "2"]
    done = optimus("token", "create", *flags, "--url", scripted.url)
    assert (done.exit_code, done.stdout) == (0, "optimus-user-x\n")
    assert body(scripted) == {
        "user": "ada", "name": "", "scope": "read", "projects": ["vision"], "expires_seconds": 172_800.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "for ever"),
        ({"revoked_at": MOMENT}, "revoked"),
        ({"last_used_at": None}, "never"),
        ({}, "2026-11-25 09:14"),
    ],
)
def test_tokens_are_listed_with_their_last_use(
    scripted: ScriptedService, optimus: Optimus, changes: dict[str, Any], shown: str
) -> None:
    scripted.on("GET", "/v1/tokens", {"tokens": [TOKEN | changes]})
    assert shown in " ".join(optimus("token", "list", "--url", scripted.url).stdout.split())


def test_who_did_what_is_shown(scripted: ScriptedService, optimus: Optimus) -> None:
    entry = {
        "id": 1, "at": MOMENT, "who": "ada", "token_id": None, "action": "job.change", "target": "digits-x",
        "project": "vision", "data": {"priority": {"from": 1, "to": 4}}, "request_id": "r",
    }  # fmt: skip
    scripted.on("GET", "/v1/audit", {"entries": [entry], "next_cursor": None})
    shown = optimus("audit", "--target", "digits-x", "--url", scripted.url).stdout
    assert all(word in shown for word in ("ada", "job.change", "digits-x"))
    assert scripted.requests[-1].query["target"] == "digits-x"


def test_mine_are_jobs_of_the_caller(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/whoami", {"name": "ada"})
    scripted.on("GET", "/v1/jobs", {"jobs": [builders.job()], "next_cursor": None})
    assert optimus("list", "--mine", "--url", scripted.url).exit_code == 0
    assert scripted.requests[-1].query["owner"] == "ada"
    assert optimus("list", "--mine", "--owner", "bob", "--url", scripted.url).exit_code == 2
