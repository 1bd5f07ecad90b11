"""The viewer of the API at `/docs` in a real browser: contents, examples to try, dark colours, a token."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.service.seeing.browser import opened
from tests.service.seeing.live import LiveService, live_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
TOKEN = "a token of sixteen and more"


def test_the_contents_list_every_call(chromium: Browser, live: LiveService) -> None:
    document = httpx.get(f"{live.url}/openapi.json", trust_env=False, timeout=60).json()
    with opened(chromium, f"{live.url}/docs") as page:
        links = page.locator("#contents a")
        links.first.wait_for()
        calls = [f"{method.upper()} {path}" for path, each in document["paths"].items() for method in each]
        assert sorted(links.all_text_contents()) == sorted(calls)
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_call_is_tried_with_its_example(chromium: Browser, live: LiveService) -> None:
    with opened(chromium, f"{live.url}/docs") as page:
        page.get_by_role("navigation", name="Contents").get_by_role("link", name="POST /v1/plan").click()
        block = page.locator(".opblock.is-open")
        block.get_by_role("button", name="Execute").wait_for()
        example = json.loads(block.locator("textarea.body-param__text").input_value())
        assert example["task"]
        page.get_by_role("navigation", name="Contents").get_by_role("link", name="GET /v1/cluster", exact=True).click()
        block = page.locator(".opblock.is-open").filter(has_text="The cluster in one look")
        block.get_by_role("button", name="Execute").click()
        block.locator(".live-responses-table .response-col_status").filter(has_text="200").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_machine_or_ones_choice(chromium: Browser, live: LiveService, scheme: Any) -> None:
    with opened(chromium, f"{live.url}/docs", color_scheme=scheme) as page:
        page.locator(".swagger-ui .opblock").first.wait_for()
        is_dark = "document.documentElement.classList.contains('dark-mode')"
        assert page.evaluate(is_dark) == (scheme == "dark")
        page.get_by_role("button", name="Colours: auto").click()
        page.get_by_role("button", name="Colours: light").click()
        page.get_by_role("button", name="Colours: dark").wait_for()
        assert page.evaluate(is_dark)


def test_it_uses_the_token_that_the_page_was_given(chromium: Browser, tmp_path: Path) -> None:
    with (
        live_service(tmp_path, token=TOKEN, history_seconds=0) as service,
        opened(chromium, f"{service.url}/docs") as page,
    ):
        page.get_by_text("This service asks for its token").wait_for()
        page.get_by_role("link", name="page", exact=True).click()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="API", exact=True).click()
        page.locator("#contents a").filter(has_text=re.compile("GET /v1/cluster$")).click()
        block = page.locator(".opblock.is-open")
        block.get_by_role("button", name="Execute").click()
        block.locator(".live-responses-table .response-col_status").filter(has_text="200").wait_for()
