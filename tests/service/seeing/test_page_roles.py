"""The page as a place to work, by role: what administrator, operator, member and viewer see, and what each may do."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx
import pytest
from tests.service.seeing.browser import PATIENCE_MS, barriers
from tests.service.seeing.live import LiveService, live_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "a token of sixteen and more"
PHONE = {"width": 390, "height": 844}
OTHERS = "resnet-50-x7k2p"
"""A job of the project that nobody here owns."""

pytestmark = pytest.mark.browser


@dataclass(frozen=True)
class Team:
    """A service with people in it."""

    live: LiveService
    tokens: dict[str, str]
    """By name; bootstrap is the administrator."""

    def ask(self, method: str, path: str, who: str = "bootstrap", body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        answer = httpx.request(method, self.live.url + path, headers=headers, json=body, trust_env=False, timeout=60)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def submit(self, name: str, who: str = "ada", **fields: Any) -> str:
        # It waits: nearly the whole cluster is never free here.
        size = {"workers": {"min": 8, "max": 8}, "servers": {"min": 15, "max": 15}}
        spec = {"name": name, "project": "vision", "task": "m:f", **size, **fields}
        job_id: str = self.ask("POST", "/v1/jobs", who, spec)["id"]
        return job_id


@pytest.fixture(scope="module")
def team(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with live_service(tmp_path_factory.mktemp("team"), token=TOKEN, history_seconds=320) as live:
        found = Team(live, {"bootstrap": TOKEN})
        people = {
            "olga": ({"role": "operator"}, "operate"),
            "ada": ({"projects": {"vision": "member"}}, "operate"),
            "vic": ({"projects": {"vision": "viewer"}}, "read"),
        }
        for name, (rights, scope) in people.items():
            found.ask("POST", f"/v1/users/{name}", body=rights)
            made = found.ask("POST", "/v1/tokens", body={"user": name, "name": "laptop", "scope": scope})
            found.tokens[name] = made["secret"]
        yield found


@pytest.fixture
def at(chromium: Browser, team: Team) -> Callable[..., Any]:
    """Opens a view as somebody."""

    @contextmanager
    def signed_in(who: str, view: str = "#/", **context: Any) -> Iterator[Page]:
        with chromium.new_context(**context) as made:
            made.add_init_script(f"sessionStorage.setItem('optimus-token', {json.dumps(team.tokens[who])})")
            page = made.new_page()
            page.set_default_timeout(PATIENCE_MS)
            complaints: list[str] = []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(f"{team.live.url}/{view}")
            yield page
            assert complaints == []

    return signed_in


def go(page: Page, team: Team, view: str) -> None:
    page.goto(f"{team.live.url}/{view}")


def names_of(page: Page, role: Any, where: str) -> list[str]:
    return [(each.text_content() or "").strip() for each in page.locator(where).get_by_role(role).all()]


# --- what each sees --------------------------------------------------------------------------------------------------

PLACES = ["Nodes", "Projects", "Usage"]
ACTIVE = ["Pause", "Cancel"]


@dataclass(frozen=True)
class Seen:
    """What somebody finds on the page."""

    links: list[str]
    of_others: list[str]
    """Buttons of a job of somebody else."""
    of_ada: list[str]
    of_nodes: list[str]
    makes_tokens: bool


SEEN = {
    "bootstrap": Seen(["Submit", *PLACES, "Users", "Tokens"], ACTIVE, ACTIVE, ["Cordon", "Drain"], True),
    "olga": Seen(["Submit", *PLACES, "Tokens"], ACTIVE, ACTIVE, ["Cordon", "Drain"], True),
    "ada": Seen(["Submit", *PLACES, "Tokens"], [], ACTIVE, [], True),
    "vic": Seen([*PLACES, "Tokens"], [], [], [], False),
}


@pytest.mark.parametrize("who", sorted(SEEN))
def test_each_sees_what_is_theirs_to_do(at: Callable[..., Any], team: Team, who: str) -> None:
    expected = SEEN[who]
    own = team.submit(f"of-ada-for-{who}")
    with at(who, f"#/jobs/{OTHERS}") as page:
        page.get_by_role("heading", level=1, name="resnet-50").wait_for()
        page.locator(".who").filter(has_text=who).wait_for(state="attached")
        assert names_of(page, "link", "header nav") == [*expected.links, "API"]
        assert names_of(page, "button", ".actions") == expected.of_others
        go(page, team, f"#/jobs/{own}")
        page.get_by_role("heading", level=1, name=f"of-ada-for-{who}").wait_for()
        assert page.locator("article > p.under").get_by_role("link", name="ada").count() == 1
        assert names_of(page, "button", ".actions") == expected.of_ada
        assert page.get_by_label("Priority").count() == bool(expected.of_ada)
        go(page, team, "#/nodes")
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=re.compile("node-0")))
        row.wait_for()
        assert [each.removesuffix(" node-0") for each in names_of(page, "button", "tr:has-text('node-0')")] == (
            expected.of_nodes
        )
        go(page, team, "#/tokens")
        page.get_by_role("rowheader").filter(has_text="laptop").first.wait_for()
        assert page.get_by_text("Make a token").count() == expected.makes_tokens
        go(page, team, "#/users")
        refused = page.get_by_text("Administrators see users here.")
        (page.get_by_text("Make a user") if "Users" in expected.links else refused).wait_for()
        go(page, team, "#/submit")
        page.get_by_text("You may not submit jobs" if who == "vic" else "What would happen").wait_for()
        assert page.get_by_role("button", name="Submit").count() == int(who != "vic")
        if who == "ada":  # who is a member of one project means that one
            assert page.get_by_label("Project").input_value() == "vision"
        go(page, team, "#/projects")
        quotas = "Give a project a quota" if "Cordon" in expected.of_nodes else "Operators give quotas"
        page.get_by_text(quotas).wait_for()
        go(page, team, "#/usage")
        page.get_by_role("link", name="CSV").wait_for()
        projects = set(names_of(page, "link", "table.usage tbody"))
        assert ("language" in projects) is (who in ("bootstrap", "olga"))


# --- finding and comparing -------------------------------------------------------------------------------------------


def test_filters_stand_in_the_address(at: Callable[..., Any], team: Team) -> None:
    first = team.submit("wanted", labels={"sweep": "one"})
    team.submit("unwanted", labels={"sweep": "two"})
    listed = "table.jobs th[scope=row] a"
    with at("olga") as page:
        page.get_by_role("combobox", name="owner").select_option("ada")
        page.get_by_role("combobox", name="label").select_option("sweep=one")
        page.locator(listed).filter(has_text="unwanted").wait_for(state="detached")
        assert page.locator(listed).all_text_contents() == ["wanted"]
        address = page.url
        assert "owner=ada" in address
    with at("olga", address.removeprefix(f"{team.live.url}/")) as page:
        page.locator(listed).wait_for()
        assert page.locator(listed).all_text_contents() == ["wanted"]
        page.get_by_role("button", name="Show all").click()
        page.locator(listed).filter(has_text="resnet").wait_for()
        assert page.url.endswith("#/")
        page.get_by_role("button", name="owner", exact=True).click()  # sorts
        page.locator("th[aria-sort=ascending]").filter(has_text="owner").wait_for()
        assert "ada" in (page.locator("table.jobs tbody tr").first.text_content() or "")
        page.get_by_role("button", name="mine").click()
        page.get_by_text("No job is like that.").wait_for()  # olga has none
    assert team.ask("GET", f"/v1/jobs/{first}")["owner"] == "ada"


def test_jobs_are_compared_by_keyboard(at: Callable[..., Any]) -> None:
    from playwright.sync_api import expect

    with at("ada") as page:
        for name in ("tiny-mlp", "resnet-50"):
            page.get_by_role("checkbox", name=re.compile(f"Compare {name} ")).focus()
            page.keyboard.press("Space")
        page.get_by_role("status").filter(has_text="2 jobs chosen").wait_for()
        page.get_by_role("link", name="Compare").focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="2 jobs compared").wait_for()
        page.get_by_role("img", name=re.compile("^loss by step. 2 curves")).wait_for()
        page.get_by_role("button", name="by time").focus()
        page.keyboard.press("Enter")
        page.get_by_role("img", name=re.compile("^loss by time since training began. 2 curves")).wait_for()
        page.get_by_role("button", name="logarithmic").click()
        values = page.get_by_role("slider", name=re.compile("Values of loss"))
        values.focus()
        page.keyboard.press("Home")
        assert re.search(r"tiny-mlp \d", values.get_attribute("aria-valuetext") or "")
        settings = page.get_by_role("group", name="Settings that differ").get_by_role("row")
        told = [each.text_content() or "" for each in settings.all()]
        assert "workers.max410" in told
        assert not [each for each in told if each.startswith("task")]
        assert page.url.endswith("#/compare?jobs=tiny-mlp-x7k2p,resnet-50-x7k2p&by=time&scale=log")
        colours = [each.get_attribute("class") for each in page.locator(".legend.compared .swatch").all()]
        page.reload()  # the address has all of it
        page.get_by_role("img", name=re.compile("^loss by time since training began. 2 curves")).wait_for()
        assert [each.get_attribute("class") for each in page.locator(".legend.compared .swatch").all()] == colours
        page.get_by_role("button", name=re.compile("^Take tiny-mlp")).press("Enter")
        page.get_by_role("heading", level=1, name="1 job compared").wait_for()
        following = page.locator(".legend.compared").get_by_role("link", name="resnet-50")
        expect(following).to_be_focused(timeout=PATIENCE_MS)


def test_what_is_not_there_is_said_and_left_out(at: Callable[..., Any], team: Team) -> None:
    with at("ada", "#/compare?jobs=resnet-50-x7k2p") as page:
        page.get_by_text("There is only one job.").wait_for()
    with at("ada", "#/compare?jobs=word2vec-x7k2p") as page:  # of another project: as if it did not exist
        page.get_by_role("alert").filter(has_text="word2vec-x7k2p").wait_for()
        page.get_by_role("button", name="Leave it out").click()
        page.get_by_text("Choose two or more jobs").wait_for()
    with at("ada", "#/compare?jobs=word2vec-x7k2p,resnet-50-x7k2p") as page:
        page.get_by_role("alert").filter(has_text="word2vec-x7k2p").wait_for()
        page.get_by_role("heading", level=1, name="1 job compared").wait_for()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        go(page, team, "#/jobs/word2vec-x7k2p")
        page.get_by_role("heading", level=1, name="This job cannot be shown").wait_for()
        assert [each for each in asked if "/v1/jobs/word2vec" in each] == [f"{team.live.url}/v1/jobs/word2vec-x7k2p"]
        page.get_by_role("link", name="All jobs").click()
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()


def test_rights_that_are_taken_away_leave_nothing_on_the_page(
    at: Callable[..., Any], team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimus_service.api.cluster.stream.RIGHTS_SECONDS", 0.0)
    team.ask("POST", "/v1/users/eva", body={"projects": {"vision": "viewer"}})
    team.tokens["eva"] = team.ask("POST", "/v1/tokens", body={"user": "eva", "name": "", "scope": "read"})["secret"]
    with at("eva") as page:
        page.get_by_role("rowheader", name=re.compile("resnet-50")).wait_for()
        team.ask("PUT", "/v1/users/eva", body={"projects": {}})
        page.get_by_text("No jobs yet.").wait_for()
        team.ask("PUT", "/v1/users/eva", body={"projects": {"vision": "viewer"}})
        page.get_by_role("rowheader", name=re.compile("resnet-50")).wait_for()
        go(page, team, f"#/jobs/{OTHERS}")
        page.get_by_role("heading", level=1, name="resnet-50").wait_for()
        team.ask("PUT", "/v1/users/eva", body={"projects": {}})
        page.get_by_role("heading", level=1, name="This job cannot be shown").wait_for()
        assert page.get_by_text("resnet-50", exact=True).count() == 0
        team.ask("DELETE", "/v1/users/eva")
        page.get_by_role("alert").filter(has_text="your token or session was revoked").wait_for()


# --- doing -----------------------------------------------------------------------------------------------------------


def test_a_job_is_changed_cancelled_run_again_and_deleted(at: Callable[..., Any], team: Team) -> None:
    from playwright.sync_api import expect

    job_id = team.submit("to-cancel")
    with at("ada", f"#/jobs/{job_id}") as page:
        priority = page.get_by_label("Priority")
        priority.fill("abc")
        priority.press("Enter")
        expect(priority).to_have_accessible_description("must be a number", timeout=PATIENCE_MS)
        expect(priority).to_be_focused(timeout=PATIENCE_MS)
        priority.fill("2")
        assert page.get_by_text("must be a number").count() == 0
        priority.press("Enter")
        page.get_by_role("button", name="Set").wait_for(state="detached")
        assert team.ask("GET", f"/v1/jobs/{job_id}")["spec"]["priority"] == 2
        page.get_by_role("button", name="Cancel").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Let it wait")).to_be_focused(timeout=PATIENCE_MS)
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Cancel")).to_be_focused(timeout=PATIENCE_MS)
        assert team.ask("GET", f"/v1/jobs/{job_id}")["state"] == "queued"
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Cancel the job").press("Enter")
        page.locator("h1 + .badge").filter(has_text="cancelled").wait_for()
        expect(page.locator(".actions button:focus")).to_have_count(1, timeout=PATIENCE_MS)
        page.get_by_role("button", name="Run again").click()
        page.wait_for_url(lambda url: "#/jobs/" in url and not url.endswith(job_id))
        again = page.url.rpartition("/")[2]
        page.get_by_role("button", name="Pause", exact=True).wait_for()
        go(page, team, f"#/jobs/{job_id}")
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete the job").click()
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()
    assert team.ask("GET", f"/v1/jobs/{again}")["spec"]["priority"] == 2
    assert job_id not in [each["id"] for each in team.ask("GET", "/v1/jobs")["jobs"]]


def test_an_operator_closes_and_opens_a_node(at: Callable[..., Any], team: Team) -> None:
    from playwright.sync_api import expect

    with at("olga", "#/nodes") as page:
        page.get_by_role("button", name="Cordon node-2").press("Enter")
        page.get_by_text("cordoned: takes no new tasks").wait_for()
        expect(page.get_by_role("button", name="Uncordon node-2")).to_be_focused(timeout=PATIENCE_MS)
        page.get_by_role("button", name="Drain node-2").wait_for()
        page.get_by_role("button", name="Uncordon node-2").click()
        page.get_by_role("button", name="Cordon node-2").wait_for()
        busy = page.locator("tr", has=page.locator(".tenants")).first
        busy.get_by_role("button", name="Drain").click()
        expect(busy.get_by_role("button", name="Leave it")).to_be_focused(timeout=PATIENCE_MS)
        page.keyboard.press("Escape")
        busy.get_by_role("button", name="Drain").wait_for()
    assert all(each["schedulable"] for each in team.ask("GET", "/v1/nodes")["nodes"])


def test_an_operator_gives_a_quota(at: Callable[..., Any], team: Team) -> None:
    """Faults stand at their fields; that the service cannot be reached is said only for as long as that is so."""
    from playwright.sync_api import expect

    team.ask("PUT", "/v1/projects/speech", body={"share": 0.5, "limits": {"waiting_jobs": 7}})
    with at("vic", "#/projects") as page:
        page.get_by_text("Operators give quotas and limits.").wait_for()
        assert not page.get_by_text("Give a project a quota").count()
    with at("olga", "#/projects") as page:
        page.get_by_text("Give a project a quota").click()
        name, share = page.get_by_label("Project", exact=True), page.get_by_label("Share of the cluster")
        store = page.get_by_role("button", name="Store the quota")
        name.fill("vision")
        share.fill("0.7")
        store.press("Enter")
        expect(share).to_have_accessible_description(re.compile("50 % is left"), timeout=PATIENCE_MS)
        name.fill("speech")
        expect(share).to_have_value("0.5", timeout=PATIENCE_MS)
        share.fill("0.25")
        page.get_by_label("Memory in GiB").fill("64")
        gpus = page.get_by_label("GPUs", exact=True)
        gpus.fill("8 V100")
        store.click()
        expect(gpus).to_have_accessible_description(re.compile("a100=8"), timeout=PATIENCE_MS)
        gpus.fill("V100=2")
        page.route("**/v1/projects/speech", lambda route: route.abort())
        store.click()
        page.get_by_text("The service cannot be reached.").wait_for()
        page.unroute("**/v1/projects/speech")
        page.get_by_text("The service cannot be reached.").wait_for(state="detached")
        store.click()
        page.get_by_text("The quota of speech is stored.").wait_for()
        quota = team.ask("GET", "/v1/projects/speech")["quota"]
        assert (quota["share"], quota["limits"]["waiting_jobs"]) == (0.25, 7)
        assert (quota["memory_bytes"], quota["gpus"]) == (64 * 2**30, {"V100": 2})
        page.get_by_role("button", name="Remove the quota of speech").click()
        page.get_by_role("button", name="Take the quota away").click()
        page.get_by_role("row").filter(has_text="speech").wait_for(state="detached")
    assert "speech" not in [each["name"] for each in team.ask("GET", "/v1/projects")["projects"]]


def test_an_administrator_makes_a_user_and_a_token_and_takes_them_back(at: Callable[..., Any], team: Team) -> None:
    from playwright.sync_api import expect

    with at("bootstrap", "#/users") as page:
        page.get_by_text("Make a user").click()
        name = page.get_by_label("Name", exact=True)
        for taken, why in (("ada", "a user has the name 'ada' already"), ("Bob!", "must have the form: lower-case")):
            name.fill(taken)
            page.get_by_role("button", name="Make the user").press("Enter")
            expect(name).to_have_accessible_description(re.compile(why), timeout=PATIENCE_MS)
            expect(name).to_be_focused(timeout=PATIENCE_MS)
        name.fill("bob")
        page.get_by_label("Member of").fill("vision, speech")
        page.get_by_role("button", name="Make the user").click()
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="bob"))
        row.filter(has_text="speech, vision").wait_for()
        page.get_by_text("bob is made.").wait_for()
        go(page, team, "#/tokens")
        page.get_by_text("Make a token").click()
        page.get_by_label("User", exact=True).fill("bob")
        page.get_by_label("What it is for").fill("bobs-laptop")
        page.get_by_role("button", name="Make it").click()
        expect(page.get_by_label("The token's secret")).to_be_focused(timeout=PATIENCE_MS)
        page.get_by_role("heading", name="Token of bob: bobs-laptop").wait_for()
        secret = page.get_by_label("The token's secret").input_value()
        team.tokens["bob"] = secret
        assert team.ask("GET", "/v1/whoami", "bob")["projects"] == {"speech": "member", "vision": "member"}
        page.get_by_role("button", name="I have it").press("Enter")
        expect(page.get_by_text("Make a token")).to_be_focused(timeout=PATIENCE_MS)
        user = page.get_by_label("User", exact=True)
        user.fill("nobody")
        page.get_by_role("button", name="Make it").press("Enter")
        expect(user).to_have_accessible_description("no user has the name 'nobody'", timeout=PATIENCE_MS)
        page.get_by_role("row").filter(has_text="bobs-laptop").wait_for()
        assert secret not in page.content()
        page.get_by_role("button", name="Revoke bobs-laptop").click()
        page.get_by_role("button", name="Revoke it").click()
        page.get_by_role("row").filter(has_text="bobs-laptop").wait_for(state="detached")
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx.get(f"{team.live.url}/v1/whoami", headers=headers, trust_env=False, timeout=60).status_code == 401
        go(page, team, "#/users")
        page.get_by_role("button", name="Change bob").click()
        users = page.get_by_role("group", name="Users")
        users.get_by_label("Member of").fill("speech")
        users.get_by_role("button", name="Store").click()
        row.filter(has_text="vision").wait_for(state="detached")
        page.get_by_role("button", name="Disable bob").click()
        page.get_by_role("button", name="Take all rights of bob").click()
        row.filter(has_text="no rights").wait_for()
        page.get_by_role("button", name="Remove bob").click()
        page.get_by_role("button", name="Remove bob and all tokens").click()
        row.wait_for(state="detached")


def test_the_usage_as_csv_is_what_the_service_tells(at: Callable[..., Any], team: Team) -> None:
    with at("olga", "#/usage") as page:
        link = page.get_by_role("link", name="CSV")
        link.wait_for()
        content = unquote((link.get_attribute("href") or "").partition(",")[2])
        rows = list(csv.DictReader(io.StringIO(content)))
        told = team.ask("GET", "/v1/usage")
        assert [(each["project"], each["gpu_type"]) for each in rows] == [
            (each["project"], each["gpu_type"] or "") for each in told["lines"]
        ]
        assert {each["month"] for each in rows} == {told["month"]}
        rounded = 5e-5 * len(rows)
        assert 0 < sum(float(each["cost"]) for each in rows) <= told["total"]["cost"] + rounded
        page.get_by_role("button", name="by project").click()
        page.get_by_role("rowheader", name="language").wait_for()
        assert page.url.endswith("#/usage?by=project")


# --- for everybody ---------------------------------------------------------------------------------------------------

VIEWS = {
    "#/?owner=ada": "combobox",
    "#/compare?jobs=tiny-mlp-x7k2p,resnet-50-x7k2p": "slider",
    "#/usage": "rowheader",
    "#/users": "rowheader",
    "#/tokens": "rowheader",
    "#/nodes": "rowheader",
}
"""What is worked with, and what is there once it is shown."""


def test_all_of_it_is_without_barriers_and_fits_on_a_phone(at: Callable[..., Any], team: Team) -> None:
    with at("bootstrap", "#/", viewport=PHONE) as page:
        for view, ready in VIEWS.items():
            go(page, team, view)
            page.get_by_role(ready).first.wait_for(state="attached")
            for summary in page.locator("main details.new summary").all():
                summary.click()
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], view
            assert barriers(page) == [], view
