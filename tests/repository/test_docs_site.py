"""The documentation site: builds without a network, all links lead somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_NETWORK = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https")}
"""Whatever would be asked for over the network is refused at once."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Strict: a link that leads nowhere fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, **NO_NETWORK, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_stranger_finds_the_way(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in ("install", "first-job", "operate", "explain", "policies", "models", "contribute", "runbooks/index"):
        assert f'href="{page}.html"' in home, page
        assert (site / f"{page}.html").exists()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = re.findall(r'<(?:script|img|link)\b[^>]*?\b(?:src|href)="(?:https?:)?//[^"]*"', page.read_text())
        assert [each for each in loads if 'rel="canonical"' not in each] == [], page


def test_the_reference_has_every_call(site: Path) -> None:
    reference = (site / "api-reference.html").read_text()
    for call in ("POST /v1/jobs", "GET /v1/jobs/{job_id}/explanation", "POST /v1/plan", "GET /v1/stream"):
        assert call in reference


def test_every_page_can_be_reached_from_every_other(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f'href="{page.stem}.html"' in home, page.name
