"""The runbooks of the alerts as pages of the service: an alert's link works wherever the service can be reached.

They are the files of docs/runbooks, which the package has with it, shown as they are; links between them lead on.
"""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from pathlib import Path

PATH = "/runbooks/"
_LINK = re.compile(r"\[([^\[\]]+)\]\((Optimus\w+|README)\.md\)")
_STYLE = (
    "body{max-width:80ch;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;white-space:pre-wrap}"
    ":root{color-scheme:light dark}"
)
STYLE_POLICY = "style-src 'unsafe-inline'"


def pages() -> dict[str, bytes]:
    """Each runbook as a page of HTML, by the path that it is served at; the list of all at `PATH` itself."""
    found = {path.stem: path.read_text("utf-8") for path in sorted(_folder().glob("*.md"))}
    return {PATH + name.replace("README", ""): page(text).encode() for name, text in found.items()}


def page(markdown: str) -> str:
    """The text of a runbook as a page. Pure."""
    title = markdown.partition("\n")[0].lstrip("# ")
    body = _LINK.sub(lambda link: f'<a href="{PATH}{link[2].replace("README", "")}">{link[1]}</a>', escape(markdown))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>{body}"
    )


def _folder() -> Path:
    """Inside the package where it was installed from a wheel, else in the repository."""
    package = Path(str(files("optimus_service")))
    inside = package / "runbooks"
    return inside if inside.is_dir() else package.parents[1] / "docs" / "runbooks"
