"""A headless Chromium for tests of the page: Debian's, driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Without these, Chromium asks its maker's servers for updates and the like.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE_MS = 60_000
"""Bounds a hang; the tests wait on conditions."""


def why_missing() -> str | None:
    """Why there is no browser here; None when there is one."""
    if shutil.which("chromium") is None:
        return "Chromium is not installed (Debian package chromium)"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed (group dev)"
    return None


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser; skips the test where there is none, unless OPTIMUS_TEST_REQUIRE_BROWSER=1."""
    missing = why_missing()
    if missing is not None:
        if os.environ.get("OPTIMUS_TEST_REQUIRE_BROWSER") == "1":
            pytest.fail(f"OPTIMUS_TEST_REQUIRE_BROWSER=1, but {missing}")
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(_FLAGS))
        try:
            yield running
        finally:
            running.close()


@contextmanager
def opened(chromium: Browser, url: str, *, service_stops: bool = False, **context: Any) -> Iterator[Page]:
    """A page that may neither complain nor ask anybody but the service.

    `service_stops`: the test stops the service, so that any request may break off at any moment.
    """
    harmless = ("401", "net::ERR_") if service_stops else ("401",)
    with chromium.new_context(**context) as made:
        page = made.new_page()
        page.set_default_timeout(PATIENCE_MS)
        complaints: list[str] = []
        asked: set[str] = set()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.add(re.sub(r"(?<=\d)/.*", "", request.url)))
        page.goto(url)
        yield page
        told = [each for each in complaints if not any(part in each for part in harmless)]
        assert told == [], f"the page complains: {told}"
        assert asked <= {re.sub(r"(?<=\d)/.*", "", url)}


def barriers(page: Page) -> list[Any]:
    """What axe finds on the page as it is now against WCAG 2.1 AA, in light and in dark colours.

    Skips without the front end's tools.
    """
    if not AXE.exists():
        pytest.skip("axe-core is not installed (npm ci in web/)")
    page.evaluate(AXE.read_text())
    run = "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']}).then((all) => all.violations)"
    found: list[Any] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        violations = page.evaluate(run)
        found += [(scheme, each["id"], [node["html"][:120] for node in each["nodes"]]) for each in violations]
    return found
