"""`optimus login`, and what other commands make of the file that it writes."""

from __future__ import annotations

import json
import stat

from tests.cli import builders
from tests.cli.conftest import Optimus, ScriptedService, problem

from optimus_client.configuration import configuration_file

TOKEN = "a-token-of-the-user"


def test_later_commands_use_what_was_stored(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/whoami", {"name": "ada", "projects": None})
    scripted.on("GET", "/v1/nodes", {"nodes": [builders.node()]})
    done = optimus("login", f"{scripted.url}/", input=f"{TOKEN}\n")
    assert done.exit_code == 0, done.stderr
    assert "You are ada." in done.stderr
    assert json.loads(configuration_file().read_text()) == {"url": scripted.url, "token": TOKEN}
    assert stat.S_IMODE(configuration_file().stat().st_mode) == 0o600
    assert optimus("nodes").exit_code == 0
    assert [each.headers["authorization"] for each in scripted.requests] == [f"Bearer {TOKEN}"] * 3


def test_flags_and_variables_come_first(scripted: ScriptedService, optimus: Optimus) -> None:
    """And the stored token goes to no other address than the one that it was stored with."""
    scripted.on("GET", "/v1/nodes", {"nodes": [builders.node()]})
    scripted.on("GET", "/v1/whoami", {"name": "local", "projects": None})
    assert optimus("login", "http://elsewhere.example.com", "--no-check", input=TOKEN).exit_code == 0
    assert optimus("nodes", "--url", scripted.url).exit_code == 0
    assert optimus("nodes", env={"OPTIMUS_URL": scripted.url}).exit_code == 0
    assert optimus("nodes", env={"OPTIMUS_URL": scripted.url, "OPTIMUS_TOKEN": "other"}).exit_code == 0
    found = [each.headers.get("authorization") for each in scripted.requests if each.path == "/v1/nodes"]
    assert found == [None, None, "Bearer other"]


def test_a_refused_token_is_not_stored(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/whoami", problem(401, "a token is needed"))
    done = optimus("login", scripted.url, env={"OPTIMUS_TOKEN": "wrong"})
    assert done.exit_code == 1
    assert "a token is needed" in done.stderr
    assert not configuration_file().exists()
    assert optimus("login", "no address", input="").exit_code == 2
    assert list(configuration_file().parent.parent.iterdir()) == []


def test_a_file_that_cannot_be_understood_is_none(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/nodes", {"nodes": [builders.node()]})
    scripted.on("GET", "/v1/whoami", {"name": "local", "projects": None})
    configuration_file().parent.mkdir()
    for text in ("", "[1]", '{"url": 3}', '{"token": "x"}'):
        configuration_file().write_text(text)
        assert optimus("nodes", env={"OPTIMUS_URL": scripted.url}).exit_code == 0


BEGUN = {
    "device_code": "secret-code",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://id.example/device",
    "verification_uri_complete": "https://id.example/device?user_code=WDJB-MJHT",
    "expires_seconds": 600.0,
    "interval_seconds": 0.0,
}
MADE = {"made": {"token": {"id": "1"}, "secret": TOKEN}, "slow_down": False}


def test_a_sign_in_in_a_browser_gives_the_token(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("POST", "/v1/sso/device", BEGUN)
    answers = iter([{"made": None, "slow_down": False}, MADE])
    scripted.on("POST", "/v1/sso/device/token", lambda _request: next(answers))
    scripted.on("GET", "/v1/whoami", {"name": "ada"})
    done = optimus("login", scripted.url, "--sso")
    assert done.exit_code == 0, done.stderr
    assert "https://id.example/device" in done.stderr
    assert "WDJB-MJHT" in done.stderr
    assert "secret-code" not in done.stderr + done.stdout
    assert json.loads(configuration_file().read_text()) == {"url": scripted.url, "token": TOKEN}
    assert [each.path for each in scripted.requests].count("/v1/sso/device/token") == 2


def test_a_sign_in_that_is_refused_or_late_stores_nothing(scripted: ScriptedService, optimus: Optimus) -> None:
    answers = iter([{**BEGUN, "expires_seconds": 0.0}, BEGUN])
    scripted.on("POST", "/v1/sso/device", lambda _request: next(answers))
    scripted.on("POST", "/v1/sso/device/token", problem(403, "you are in none of the groups"))
    late = optimus("login", scripted.url, "--sso")
    refused = optimus("login", scripted.url, "--sso")
    assert (late.exit_code, refused.exit_code) == (2, 1)
    assert "start again" in late.stderr
    assert "none of the groups" in refused.stderr
    assert not configuration_file().exists()


def test_signing_out_revokes_the_token_and_forgets_it(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("DELETE", "/v1/session", {})
    assert optimus("login", scripted.url, "--no-check", input=TOKEN).exit_code == 0
    done = optimus("logout")
    assert done.exit_code == 0, done.stderr
    assert [each.headers["authorization"] for each in scripted.requests] == [f"Bearer {TOKEN}"]
    assert json.loads(configuration_file().read_text()) == {"url": scripted.url, "token": None}
    again = optimus("logout")
    assert again.exit_code == 2
    assert "no token is stored" in again.stderr
