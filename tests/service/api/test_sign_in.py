"""Signing in with a real OpenID provider, and what attackers try around it."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.service.api.api_harness import Api, Surroundings, job_spec, on_sqlite, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user
from tests.service.api.signing_in import PUBLIC_URL, ROOT, Browser, RunningProvider, running_provider

from optimus_service.api.access.cookies import SIGN_IN_SECONDS
from optimus_service.settings.oidc import OidcSettings

Serve = Callable[..., AbstractContextManager[Api]]
PAGE = {"X-Optimus-Page": "1"}
"""What the page sends with all its requests."""


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProvider]:
    with running_provider(tmp_path_factory.mktemp("provider")) as running:
        running.person("ada", "vision", "something-else")
        running.person("root", "ml-admins", "vision")
        running.person("stranger", "something-else")
        yield running


@pytest.fixture
def api(serving: Serve, provider: RunningProvider, surroundings: Surroundings) -> Iterator[Api]:
    """The service with the provider, whose clocks agree. Its client keeps cookies, as one browser does."""
    surroundings.clock.now = time.time()
    with serving(token=ADMINISTRATOR, oidc=provider.settings()) as api:
        yield api


def begin(api: Api, view: str = "#/jobs/a-1") -> str:
    answer = api.get("/v1/sso/start", params={"return_to": view})
    assert answer.status_code == 303
    return answer.headers["location"]


def come_back(api: Api, url: str) -> httpx.Response:
    """The browser follows the provider's way back to the service."""
    return api.get(url.removeprefix(PUBLIC_URL))


def sign_in(api: Api, name: str) -> httpx.Response:
    answer = come_back(api, Browser(name).sign_in(begin(api)))
    assert answer.headers["location"] == "/#/jobs/a-1", answer.headers
    return answer


def whoami(api: Api) -> Any:
    return api.get("/v1/whoami", headers=PAGE)


def device_sign_in(api: Api, name: str, groups: str = "accept") -> Any:
    begun = api.post("/v1/sso/device").json()
    Browser(name).enter(begun["verification_uri"], begun["user_code"], groups)
    return api.post("/v1/sso/device/token", json={"device_code": begun["device_code"]})


# --- the page --------------------------------------------------------------------------------------------------------


def test_somebody_signs_in_works_and_signs_out(api: Api) -> None:
    assert api.get("/v1/sign-in").json() == {"token": True, "sso": "single sign-on"}
    problem(whoami(api), 401)
    sign_in(api, "ada")
    me = whoami(api).json()
    assert (me["name"], me["role"], me["projects"]) == ("ada", None, {"vision": "member"})
    made = api.post("/v1/jobs", json=job_spec(project="vision"), headers=PAGE)
    assert made.status_code == 201
    assert made.json()["owner"] == "ada"
    session = api.client.cookies["optimus-session"]
    assert api.call("DELETE", "/v1/session", headers=PAGE).status_code == 204
    assert "optimus-session" not in api.client.cookies
    api.client.cookies["optimus-session"] = session  # whoever has copied it
    problem(whoami(api), 401)
    record = [(each["action"], each["who"]) for each in api.get("/v1/audit", token=ADMINISTRATOR).json()["entries"]]
    assert record == [("user.sign-out", "ada"), ("job.submit", "ada"), ("user.sign-in", "ada")]


def test_rights_follow_the_groups_at_each_sign_in(api: Api, provider: RunningProvider) -> None:
    provider.person("mover", "vision")
    sign_in(api, "mover")
    first = whoami(api).json()["projects"]
    provider.person("mover", "vision", "guests")
    sign_in(api, "mover")
    second = whoami(api).json()["projects"]
    provider.person("mover", "ml-operators", "vision")
    sign_in(api, "mover")
    third = whoami(api).json()
    assert first == {"vision": "member"}
    assert second == {"vision": "member", "speech": "viewer"}
    assert (third["role"], third["projects"]) == ("operator", None)
    users = api.get("/v1/users", token=ADMINISTRATOR).json()["users"]
    assert [(each["name"], each["subject"].startswith(provider.issuer)) for each in users] == [("mover", True)]


@on_sqlite
def test_an_administrator_by_group_administers(api: Api) -> None:
    sign_in(api, "root")
    assert api.post("/v1/users/new-one", json={}, headers=PAGE).status_code == 201


@on_sqlite
def test_whoever_is_in_no_known_group_stays_outside(api: Api) -> None:
    answer = come_back(api, Browser("stranger").sign_in(begin(api)))
    assert answer.headers["location"] == "/#/sign-in/no-group"
    problem(whoami(api), 401)
    assert api.get("/v1/users", token=ADMINISTRATOR).json()["users"] == []


def test_a_name_that_somebody_else_has_is_not_taken_over(api: Api) -> None:
    add_user(api, "ada", {"secret-project": "member"})
    answer = come_back(api, Browser("ada").sign_in(begin(api)))
    assert answer.headers["location"] == "/#/sign-in/name-taken"
    problem(whoami(api), 401)


@on_sqlite
def test_a_new_key_of_the_provider_is_fetched(api: Api, provider: RunningProvider) -> None:
    sign_in(api, "ada")
    provider.rotate()
    api.surroundings.clock.now += 31.0
    sign_in(api, "ada")
    assert whoami(api).json()["name"] == "ada"


@on_sqlite
def test_the_token_of_the_service_works_as_before(api: Api) -> None:
    assert api.get("/v1/whoami", token=ADMINISTRATOR).json()["name"] == "bootstrap"


# --- around the page: what attackers try -----------------------------------------------------------------------------


@on_sqlite
def test_an_answer_of_the_provider_is_good_in_the_browser_that_asked_and_once(api: Api) -> None:
    back = Browser("ada").sign_in(begin(api))
    cookie = api.client.cookies["optimus-sign-in"]
    api.client.cookies.clear()
    elsewhere = come_back(api, back)  # the attacker's answer in somebody else's browser
    api.client.cookies["optimus-sign-in"] = cookie
    assert elsewhere.headers["location"] == "/#/sign-in/elsewhere"
    assert come_back(api, back).headers["location"] == "/#/jobs/a-1"
    api.client.cookies.clear()
    api.client.cookies["optimus-sign-in"] = cookie
    assert come_back(api, back).headers["location"] == "/#/sign-in/refused"  # the code is used up
    problem(whoami(api), 401)


@on_sqlite
def test_a_state_of_another_sign_in_is_refused(api: Api) -> None:
    back = Browser("ada").sign_in(begin(api))
    begin(api)  # the browser has a new one
    assert come_back(api, back).headers["location"] == "/#/sign-in/elsewhere"


@on_sqlite
def test_a_code_that_was_put_into_another_sign_in_is_refused(api: Api) -> None:
    """Somebody's stolen code, with the state of a sign-in that the thief began: PKCE and the nonce do not match."""
    stolen = parse_qs(urlsplit(Browser("root").sign_in(begin(api))).query)["code"][0]
    state = parse_qs(urlsplit(begin(api)).query)["state"][0]
    answer = api.get("/v1/sso/callback", params={"code": stolen, "state": state})
    assert answer.headers["location"] == "/#/sign-in/refused"


@on_sqlite
def test_a_sign_in_leads_back_to_the_page_only(api: Api) -> None:
    answer = come_back(api, Browser("ada").sign_in(begin(api, "https://evil.example")))
    assert answer.headers["location"] == "/#/"


@on_sqlite
def test_a_session_that_was_set_before_is_not_kept(api: Api) -> None:
    """Fixation: the attacker's session in the victim's browser does not become the victim's."""
    add_user(api, "mallory", {"vision": "viewer"})
    planted = add_token(api, "mallory")
    api.client.cookies["optimus-session"] = planted
    sign_in(api, "ada")
    sessions = {cookie.value for cookie in api.client.cookies.jar if cookie.name == "optimus-session"} - {planted}
    assert len(sessions) == 1
    assert api.get("/v1/whoami", token=planted).json()["name"] == "mallory"
    assert api.get("/v1/whoami", token=sessions.pop()).json()["name"] == "ada"


@on_sqlite
def test_requests_that_other_sites_cause_have_no_session(api: Api) -> None:
    sign_in(api, "ada")
    for headers, status in (
        ({}, 401),  # a form or an image of another site: it cannot set the header
        ({**PAGE, "Origin": "https://evil.example"}, 403),
        ({**PAGE, "Origin": "null"}, 403),
        ({**PAGE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**PAGE, "Sec-Fetch-Site": "same-site"}, 403),
        ({**PAGE, "Origin": PUBLIC_URL, "Sec-Fetch-Site": "same-origin"}, 201),
    ):
        answer = api.post("/v1/jobs", json=job_spec(project="vision"), headers=headers)
        assert answer.status_code == status, answer.text
        assert "access-control-allow-origin" not in answer.headers


@on_sqlite
def test_cookies_are_out_of_reach(serving: Serve, provider: RunningProvider) -> None:
    with serving(token=ADMINISTRATOR, oidc=provider.settings("https://optimus.example")) as api:
        answer = api.get("/v1/sso/start")
        (cookie,) = answer.headers.get_list("set-cookie")
        where = parse_qs(urlsplit(answer.headers["location"]).query)
    name, *rest = (each.strip() for each in cookie.lower().split(";"))
    assert name.startswith("__host-optimus-sign-in=")
    assert set(rest) == {"httponly", "secure", "samesite=lax", "path=/", f"max-age={SIGN_IN_SECONDS}"}
    assert where["redirect_uri"] == ["https://optimus.example/v1/sso/callback"]
    assert where["code_challenge_method"] == ["S256"]


def test_sessions_end_by_time_and_by_an_administrator(api: Api) -> None:
    (cookie,) = [each.lower() for each in sign_in(api, "ada").headers.get_list("set-cookie") if "session" in each]
    assert all(word in cookie for word in ("httponly", "samesite=strict", "max-age=43200"))
    token_id, session = whoami(api).json()["token_id"], api.client.cookies["optimus-session"]
    assert api.call("DELETE", f"/v1/tokens/{token_id}", token=ADMINISTRATOR).status_code == 204
    problem(whoami(api), 401)
    sign_in(api, "ada")
    assert api.client.cookies["optimus-session"] != session
    assert whoami(api).status_code == 200
    api.surroundings.clock.now += 12 * 3600.0
    problem(whoami(api), 401)


# --- the command line ------------------------------------------------------------------------------------------------


def test_somebody_signs_in_on_another_device(api: Api) -> None:
    begun = api.post("/v1/sso/device").json()
    code = {"device_code": begun["device_code"]}
    assert api.post("/v1/sso/device/token", json=code).json() == {"made": None, "slow_down": False}
    Browser("ada").enter(begun["verification_uri"], begun["user_code"])
    answer = api.post("/v1/sso/device/token", json=code)
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()["made"]
    assert made["token"]["user"] == "ada"
    assert api.get("/v1/whoami", token=made["secret"]).json()["projects"] == {"vision": "member"}
    problem(api.post("/v1/sso/device/token", json=code), 403)  # used up
    assert [each["who"] for each in api.get("/v1/audit", token=ADMINISTRATOR).json()["entries"]] == ["ada"]


@on_sqlite
def test_a_device_that_is_refused_or_of_nobody_here(api: Api) -> None:
    assert "refused in the browser" in problem(device_sign_in(api, "ada", "deny"), 403)["detail"]
    assert "none of the groups" in problem(device_sign_in(api, "stranger"), 403)["detail"]
    problem(api.post("/v1/sso/device/token", json={"device_code": "guessed"}), 403)


# --- without a provider ----------------------------------------------------------------------------------------------


@on_sqlite
def test_a_service_without_a_provider_says_so(serving: Serve) -> None:
    with serving() as api:
        assert api.get("/v1/sign-in").json() == {"token": False, "sso": None}
        for method, path in (("GET", "/v1/sso/start"), ("GET", "/v1/sso/callback"), ("POST", "/v1/sso/device")):
            problem(api.call(method, path), 404)
        assert api.call("DELETE", "/v1/session").status_code == 204


@on_sqlite
def test_a_provider_that_is_away_is_said_and_nothing_else_stops(serving: Serve, provider: RunningProvider) -> None:
    with serving(token=ADMINISTRATOR, oidc={**provider.settings(), "issuer": "http://127.0.0.1:9"}) as api:
        assert api.get("/v1/sso/start").headers["location"] == "/#/sign-in/unavailable"
        refusal = api.post("/v1/sso/device")
        assert "does not answer" in problem(refusal, 503)["detail"]
        assert refusal.headers["retry-after"]
        assert api.get("/v1/jobs", token=ADMINISTRATOR).status_code == 200


# --- the page of the docs --------------------------------------------------------------------------------------------


@on_sqlite
def test_the_first_team_of_the_docs_signs_in(
    serving: Serve, provider: RunningProvider, surroundings: Surroundings
) -> None:
    """With the settings that docs/sso.md sets, but for where the provider is."""
    page = (ROOT / "docs" / "sso.md").read_text("utf-8")
    exported = re.findall(r"^export OPTIMUS_OIDC__(\w+)=(.*)$", page, re.MULTILINE)
    told = {name.lower(): shlex.split(value)[0] for name, value in exported}
    told |= {name: json.loads(told[name]) for name in ("roles", "projects")}
    surroundings.clock.now = time.time()
    here = {name: provider.settings()[name] for name in ("issuer", "client_id", "client_secret", "public_url")}
    provider.person("vera", "ml-vision", "ml-leads")
    with serving(token=ADMINISTRATOR, oidc=told | here) as api:
        assert api.get("/v1/sign-in").json()["sso"] == "Company login"
        sign_in(api, "vera")
        assert whoami(api).json()["projects"] == {"vision": "member", "speech": "viewer"}
    fields = set(OidcSettings.model_fields)
    assert fields <= {each.lower() for each in re.findall(r"[A-Z]+(?:_[A-Z]+)*", page.replace("OPTIMUS_OIDC__", " "))}
