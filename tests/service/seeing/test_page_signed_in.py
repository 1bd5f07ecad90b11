"""The page as a place to work: people sign in with an OpenID provider in a real browser, and submit jobs, by role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.service.api.signing_in import RunningProvider, running_provider
from tests.service.seeing.browser import PATIENCE_MS, barriers
from tests.service.seeing.live import LiveService, live_service

from optimus_service.settings.oidc import OidcSettings
from optimus_workers.wire.ports import reserve_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "a token of sixteen and more"
PHONE = {"width": 390, "height": 844}

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shared(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service with jobs, whose people are those of a provider."""
    port = reserve_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    with running_provider(tmp_path_factory.mktemp("provider"), f"{url}/v1/sso/callback") as provider:
        tell(provider)
        oidc = OidcSettings(**provider.settings(url, name="Example Login"))
        folder = tmp_path_factory.mktemp("shared")
        with live_service(folder, token=TOKEN, history_seconds=320, port=port, oidc=oidc) as service:
            yield service


def tell(provider: RunningProvider) -> None:
    provider.person("ada", "vision")
    provider.person("guest", "guests")
    provider.person("olga", "ml-operators")
    provider.person("stranger", "others")


@contextmanager
def browsing(chromium: Browser, url: str, **context: Any) -> Iterator[Page]:
    with chromium.new_context(**context) as made:
        page = made.new_page()
        page.set_default_timeout(PATIENCE_MS)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        yield page
        assert complaints == []


def sign_in(page: Page, name: str) -> None:
    page.get_by_role("link", name="Sign in with Example Login").click()
    page.locator("input[name=username]").fill(name)
    page.locator("input[name=password]").fill(name)
    page.get_by_role("button", name="Enter").click()


def test_a_member_signs_in_submits_and_signs_out(chromium: Browser, shared: LiveService) -> None:
    from playwright.sync_api import expect

    with browsing(chromium, f"{shared.url}/#/nodes") as page:
        sign_in(page, "ada")
        page.get_by_role("heading", level=1, name="Nodes").wait_for()  # where one wanted to go
        page.locator(".who").filter(has_text="ada, member of vision").wait_for()
        page.get_by_role("link", name="Submit").click()
        expect(page.get_by_label("Project")).to_have_value("vision", timeout=PATIENCE_MS)
        file = page.get_by_label("The job's file (YAML)")
        file.fill("name: from-the-page\nproject: vision\ntask: m:f  # a comment\nworkers:\n  max: 2\n")
        preview = page.get_by_role("region", name="What would happen")
        preview.get_by_text("It would get").wait_for()
        at_most = page.get_by_label("Workers at most")
        at_most.fill("three")
        at_most.press("Tab")  # by keyboard: out of the field
        preview.get_by_role("alert").filter(has_text="Workers at most (workers.max)").wait_for()
        assert at_most.get_attribute("aria-invalid") == "true"
        preview.get_by_role("button", name="Submit").press("Enter")
        expect(at_most).to_be_focused(timeout=PATIENCE_MS)
        at_most.fill("3")
        at_most.press("Tab")
        preview.get_by_text("It would get").wait_for()
        assert "task: m:f # a comment" in file.input_value()
        assert "max: 3" in file.input_value()
        submit = preview.get_by_role("button", name="Submit")
        submit.focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="from-the-page").wait_for()
        page.get_by_role("link", name="Optimus").first.click()
        page.get_by_role("button", name="mine").click()
        page.locator("table.jobs tbody tr").filter(has_text="resnet").wait_for(state="detached")
        rows = page.locator("table.jobs th[scope=row] a").all_text_contents()
        assert rows == ["from-the-page"]
        page.get_by_role("searchbox").fill("ADA")  # the owner is found, too
        assert page.locator("table.jobs th[scope=row] a").all_text_contents() == ["from-the-page"]
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign in with Example Login").wait_for()
        assert [each for each in page.context.cookies(shared.url) if each["name"] == "optimus-session"] == []
    (job,) = [each for each in shared.world.repository.jobs.active() if each.name == "from-the-page"]
    assert job.owner == "ada"


@pytest.mark.parametrize(("name", "submits"), [("guest", False), ("olga", True)])
def test_who_may_submit_is_offered_it(chromium: Browser, shared: LiveService, name: str, submits: bool) -> None:
    with browsing(chromium, shared.url) as page:
        sign_in(page, name)
        page.locator(".who").filter(has_text=name).wait_for()
        assert page.get_by_role("link", name="Submit").count() == int(submits)


def test_somebody_of_no_group_is_told_why(chromium: Browser, shared: LiveService) -> None:
    with browsing(chromium, shared.url) as page:
        sign_in(page, "stranger")
        page.get_by_role("alert").filter(has_text="none of the groups").wait_for()
        assert barriers(page) == []
        page.get_by_label("Token").fill(TOKEN)  # the administrator's way in stays
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.locator(".who").filter(has_text="bootstrap, administrator").wait_for()


def test_submitting_has_no_barriers_and_fits_on_a_phone(chromium: Browser, shared: LiveService) -> None:
    with browsing(chromium, shared.url, viewport=PHONE) as page:
        page.get_by_label("Token").fill(TOKEN)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.get_by_role("link", name="Submit").click()
        page.get_by_role("region", name="What would happen").get_by_text("What others lose").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert barriers(page) == []
