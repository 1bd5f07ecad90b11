"""`optimus user`, `token`, `whoami`, `audit`, and `list --mine`."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.cli import builders
from tests.cli.conftest import Answer, Optimus, ScriptedService

from optimus_cli.bodies import User
from optimus_cli.show import render_people

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
    scripted.on("GET", "/v1/users/ada", USER)
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


def test_limits_of_a_user_stay_until_they_are_given_or_taken_away(scripted: ScriptedService, optimus: Optimus) -> None:
    own = {"waiting_jobs": 5, "max_workers": None, "max_priority": None, "requests_per_second": 2.5}
    scripted.on("GET", "/v1/users/ada", USER | {"limits": own})
    scripted.on("PUT", "/v1/users/ada", USER | {"limits": own})

    def sent(*flags: str) -> Any:
        done = optimus("user", "set", "ada", *flags, "--url", scripted.url)
        assert done.exit_code == 0, done.stderr
        assert "waiting jobs 5, requests per second 2.5" in " ".join(done.stdout.split())
        return body(scripted)

    assert sent("--max-priority", "3")["limits"] == {"waiting_jobs": 5, "requests_per_second": 2.5, "max_priority": 3.0}
    assert body(scripted)["projects"] == USER["projects"]
    assert sent("--viewer", "nlp")["limits"] == {"waiting_jobs": 5, "requests_per_second": 2.5}
    assert "limits" not in sent("--default-limits")
    assert "limits" not in sent("--role", "operator")


def test_rights_are_taken_away_only_where_that_is_said(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/users/ada", USER)
    scripted.on("PUT", "/v1/users/ada", USER | {"projects": {"nlp": "viewer"}})
    calls = ["user", "set", "ada", "--url", scripted.url]
    silent = optimus(*calls)
    assert (silent.exit_code, silent.stdout) == (2, "")
    assert "Say all that ada may do from now on: --member PROJECT" in silent.stderr
    assert "--no-rights" in silent.stderr
    assert optimus(*calls, "--no-rights", "--role", "operator").exit_code == 2
    assert not [request for request in scripted.requests if request.method == "PUT"]
    fewer = optimus(*calls, "--viewer", "nlp")
    assert (fewer.exit_code, fewer.stderr) == (0, "Taken away from ada: vision (member).\n")
    assert optimus(*calls, "--no-rights").exit_code == 0
    assert body(scripted) == {"kind": "person", "role": None, "projects": {}}


def test_what_a_user_is_stays_where_rights_are_given_and_the_other_way_round(
    scripted: ScriptedService, optimus: Optimus
) -> None:
    program = USER | {"kind": "service"}
    scripted.on("GET", "/v1/users/ada", program)
    scripted.on("PUT", "/v1/users/ada", program)
    assert optimus("user", "set", "ada", "--role", "operator", "--url", scripted.url).exit_code == 0
    assert body(scripted) == {"kind": "service", "role": "operator", "projects": {}}
    assert optimus("user", "set", "ada", "--person", "--url", scripted.url).exit_code == 0
    assert body(scripted) == {"kind": "person", "role": None, "projects": USER["projects"]}


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ({"role": "administrator"}, {"role": "operator"}, "administrator"),
        ({"role": "operator"}, {"role": "administrator"}, ""),
        ({"role": "operator"}, {"role": "operator"}, ""),
        ({"role": "operator"}, {"projects": {"nlp": "member"}}, "operator"),
        ({"projects": {"nlp": "member"}}, {"role": "operator"}, ""),
        ({"projects": {"nlp": "viewer"}}, {"projects": {"nlp": "member"}}, ""),
        (
            {"projects": {"nlp": "member", "vision": "viewer"}},
            {"projects": {"nlp": "viewer"}},
            "nlp (member), vision (viewer)",
        ),
        ({}, {}, ""),
    ],
)
def test_what_a_change_of_rights_takes_away(before: dict[str, Any], after: dict[str, Any], lost: str) -> None:
    nothing = USER | {"projects": {}}
    assert render_people.lost(cast("User", nothing | before), cast("User", nothing | after)) == lost


def test_a_user_without_rights_is_said_to_have_none(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("POST", "/v1/users/ada", USER | {"projects": {}})
    done = optimus("user", "create", "ada", "--url", scripted.url)
    assert done.stdout == "ada is a user who may do nothing yet; `optimus user set ada` gives rights\n"


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


def test_a_narrow_list_of_tokens_leaves_columns_out_and_breaks_no_word(
    scripted: ScriptedService, optimus: Optimus
) -> None:
    long = TOKEN | {"user": "pipeline", "name": "for the nightly runs", "expires_at": MOMENT}
    scripted.on("GET", "/v1/tokens", {"tokens": [long, long | {"projects": ["vision", "nlp"]}]})
    told = optimus("token", "list", "--url", scripted.url, env={"COLUMNS": "80"}).stdout.split()
    assert {"projects", "all", "vision,", "nlp", "pipeline"} <= {*told}
    assert "name" not in told


def test_who_did_what_is_shown(scripted: ScriptedService, optimus: Optimus) -> None:
    entry = {
        "id": 1, "at": MOMENT, "who": "ada", "token_id": None, "action": "job.change",
        "target": "digits-allreduce-k2m4x", "project": "vision", "request_id": "r",
        "data": {"priority": {"from": 1, "to": 4}, "deadline_seconds": {"from": None, "to": 600}},
    }  # fmt: skip
    scripted.on("GET", "/v1/audit", {"entries": [entry], "next_cursor": None})
    shown = optimus("audit", "--target", "digits-x", "--url", scripted.url).stdout
    told = "ada", "job.change", "digits-allreduce-k2m4x", "priority 1 → 4", "deadline_seconds"
    assert all(word in shown for word in told)
    assert len([line for line in shown.splitlines() if line.strip()]) <= 6, "a line for the most, of 80 columns"
    assert scripted.requests[-1].query["target"] == "digits-x"


def test_mine_are_jobs_of_the_caller(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/whoami", {"name": "ada"})
    scripted.on("GET", "/v1/jobs", {"jobs": [builders.job()], "next_cursor": None})
    assert optimus("list", "--mine", "--url", scripted.url).exit_code == 0
    assert scripted.requests[-1].query["owner"] == "ada"
    assert optimus("list", "--mine", "--owner", "bob", "--url", scripted.url).exit_code == 2


@pytest.mark.parametrize(
    ("command", "path", "question"),
    [
        (("user", "remove", "ada"), "/v1/users/ada", "Remove the user ada (nlp (viewer), vision (member)) with all "),
        (
            ("token", "revoke", TOKEN["id"]),
            "/v1/tokens/0123456789ab",
            "Revoke the token 0123456789ab `laptop` of ada? ",
        ),
        (("token", "revoke", "ff"), "/v1/tokens/ff", "Revoke the token ff? "),
    ],
)
def test_a_user_or_a_token_is_taken_away_after_a_question(
    scripted: ScriptedService, optimus: Optimus, command: tuple[str, ...], path: str, question: str
) -> None:
    scripted.on("GET", "/v1/users/ada", USER)
    scripted.on("GET", "/v1/tokens", {"tokens": [TOKEN]})
    scripted.on("DELETE", path, Answer(204, b""))
    declined = optimus(*command, "--url", scripted.url, input="n\n")
    assert declined.exit_code == 1
    assert declined.stderr.startswith(question)
    assert {request.method for request in scripted.requests} == {"GET"}
    assert optimus(*command, "--url", scripted.url, input="y\n").exit_code == 0
    assert scripted.requests[-1].method == "DELETE"
    assert optimus(*command, "--yes", "--url", scripted.url).exit_code == 0
