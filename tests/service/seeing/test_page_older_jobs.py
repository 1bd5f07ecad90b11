"""The list of jobs of the page where more have ended than the stream tells of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.service.seeing.browser import barriers, opened
from tests.service.seeing.live import LiveService, live_service

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_scheduler.lifecycle import CancelRequested
from optimus_service.push import stream_state
from optimus_service.push.stream_state import MAX_ENDED
from optimus_service.requests import checked
from optimus_service.store.jobs import listing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

# uvicorn 0.5x and websockets warn of each other's deprecations when a server runs in a thread.
pytestmark = pytest.mark.browser
N_OLDER = 6
PHONE = {"width": 390, "height": 844}
LISTS = re.compile(r"/v1/jobs\?")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LiveService]:
    """`MAX_ENDED` jobs that have ended, and before them six: of these the oldest has an owner and a label."""
    with live_service(tmp_path, history_seconds=0, kinds=()) as running:
        running.loop.stop(10.0)
        add_ended(
            running, "ancient-x7k2p", "the-first", 400.0, owner="ada", project="vision", labels={"team": "search"}
        )
        for number in range(MAX_ENDED + N_OLDER - 1):
            add_ended(running, f"run-{number:02d}", f"run-{number:02d}", 300.0 - number)
        yield running


def add_ended(
    running: LiveService, job_id: str, name: str, age: float, owner: str | None = None, **fields: Any
) -> None:
    """Store a job that was submitted `age` seconds ago and then cancelled."""
    world = running.world
    document = write(checked(JobSpec, {"name": name, "task": "m:f", **fields}))
    world.repository.jobs.create(job_id, document, "nonce", None, "hash", world.clock() - age, owner=owner)
    world.repository.jobs.advance(job_id, CancelRequested(), world.clock())


def count(page: Page, group: str, number: int) -> None:
    """Wait until so many of the group are counted."""
    page.get_by_role("button", name=f"{group} {number}", exact=True).wait_for()


def names(page: Page) -> list[str]:
    return page.locator("table.jobs th[scope=row] a").all_text_contents()


def test_older_ended_jobs_are_counted_loaded_and_kept_up(chromium: Browser, service: LiveService) -> None:
    retention = service.world.repository.retention
    n = MAX_ENDED + N_OLDER
    with opened(chromium, service.url) as page:
        count(page, "all", n)
        count(page, "ended", n)
        tile = page.locator(".tile").filter(has_text="cancelled")
        assert tile.inner_text().split("\n") == ["Ended", str(n), f"0 succeeded, 0 failed, {n} cancelled"]
        page.get_by_text(f"{N_OLDER} older ended jobs are not loaded; the list is sorted without them.").wait_for()
        assert len(names(page)) == MAX_ENDED
        page.get_by_role("button", name="Load older jobs").click()
        page.get_by_text(f"1–{MAX_ENDED} of {n}", exact=True).wait_for()
        assert page.get_by_text("sorted without them").count() == 0
        page.get_by_role("button", name="next").click()
        page.get_by_role("link", name="the-first").wait_for()
        assert len(names(page)) == N_OLDER
        retention.delete_job("run-00")
        page.get_by_role("link", name="run-00").wait_for(state="detached")
        count(page, "ended", n - 1)
        for number in range(3):  # each takes one from the newest, of which the stream tells
            add_ended(service, f"late-{number}", f"late-{number}", 0.0)
        count(page, "ended", n + 2)
        page.get_by_text(f"{MAX_ENDED + 1}–{n + 2} of {n + 2}", exact=True).wait_for()
        shown = names(page)
        page.get_by_role("button", name="previous").click()
        page.get_by_role("link", name="late-0").wait_for()
        shown += names(page)
        assert len(shown) == len(set(shown)) == n + 2


@pytest.mark.parametrize("text", ["ancient-x7", "he-firs", "ADA", "vision", "team=search"])
def test_a_job_that_ended_long_ago_is_found(text: str, chromium: Browser, service: LiveService) -> None:
    with opened(chromium, service.url) as page:
        count(page, "all", MAX_ENDED + N_OLDER)
        page.get_by_role("searchbox").fill(text)
        page.get_by_role("link", name="the-first").wait_for()
        assert names(page) == ["the-first"]


@pytest.mark.parametrize(
    "query", ["owner=ada", "project=vision", "label=team", "state=cancelled&find=first&show=ended"]
)
def test_filters_ask_for_older_jobs(query: str, chromium: Browser, service: LiveService) -> None:
    with opened(chromium, f"{service.url}/#/?{query}") as page:
        page.get_by_role("link", name="the-first").wait_for()
        assert names(page) == ["the-first"]


def test_a_search_goes_on_until_it_has_found_something(
    chromium: Browser, service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LOOKED_THROUGH", 20)
    with opened(chromium, f"{service.url}/#/?find=the-f") as page:
        page.get_by_role("link", name="the-first").wait_for()
        page.get_by_role("searchbox").fill("run-")
        page.get_by_text("There may be more among older ended jobs").or_(
            page.get_by_text(f"of {MAX_ENDED + 5}")
        ).wait_for()
        while page.get_by_role("button", name="Load older jobs").count():
            page.get_by_role("button", name="Load older jobs").click()
            page.get_by_text("Looking through").wait_for(state="detached")
        page.get_by_text(f"1–{MAX_ENDED} of {MAX_ENDED + N_OLDER - 1}", exact=True).wait_for()


def test_that_there_is_no_such_job_is_said_when_the_service_has_said_so(
    chromium: Browser, service: LiveService
) -> None:
    held: list[Route] = []
    with opened(chromium, service.url, service_stops=True) as page:
        count(page, "all", MAX_ENDED + N_OLDER)
        page.route(LISTS, lambda route: held.append(route))
        page.get_by_role("searchbox").fill("nobody")
        page.get_by_text("Looking through older ended jobs …").wait_for()
        while not held:
            page.wait_for_timeout(20)
        assert page.get_by_text("No job is like that.").count() == 0
        held.pop().abort()
        page.get_by_text("Older ended jobs are not all here: The service cannot be reached.").wait_for()
        assert page.get_by_text("No job is like that.").count() == 0
        page.unroute(LISTS)
        for route in held:
            route.continue_()
        page.get_by_text("No job is like that.").wait_for()
        assert page.get_by_text("older ended jobs").count() == 0


def test_of_active_jobs_that_are_left_out_it_is_not_said_that_there_are_none(
    chromium: Browser, service: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_state, "MAX_ACTIVE", 1)
    for number in range(2):
        document = write(checked(JobSpec, {"name": f"waits-{number}", "task": "m:f"}))
        service.world.repository.jobs.create(f"waits-{number}", document, "nonce", None, "hash", 1000.0 + number)
    with opened(chromium, f"{service.url}/#/?find=waits-0") as page:
        page.get_by_text("No job on this page is like that.").wait_for()
        count(page, "all", MAX_ENDED + N_OLDER + 2)
        page.get_by_role("heading", level=1).filter(has_text="1 older active job not counted.").wait_for()


def test_what_is_left_can_be_used_by_everybody(chromium: Browser, service: LiveService) -> None:
    with opened(chromium, service.url, viewport=PHONE) as page:
        page.get_by_role("button", name="Load older jobs").wait_for()
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
