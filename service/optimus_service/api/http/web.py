"""The page at `/` and the viewer of the API at `/docs`: built files from `optimus_service/web` (sources in the folder
`web/` of the repository), and the runbooks that alerts link to.

Anybody may load them: they hold no data. The program of the page asks for a token where one is needed.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FOREVER = "public, max-age=31536000, immutable"
"""For names that hold a hash of their content."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One built file."""

    content: bytes
    zipped: bytes
    media_type: str
    etag: str
    cache: str
    security_policy: str

    @classmethod
    def read(cls, file: Traversable, cache: str) -> Asset:
        media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return cls.of(file.read_bytes(), media_type, cache, SECURITY_POLICY)

    @classmethod
    def of(cls, content: bytes, media_type: str, cache: str, security_policy: str) -> Asset:
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, gzip.compress(content, mtime=0), media_type, etag, cache, security_policy)


@cache
def built_files() -> Mapping[str, Asset]:
    """All built files by the path that they are served at. Read and zipped once in a process."""
    folder = files("optimus_service") / "web" / "static"
    assets = {f"/assets/{file.name}": Asset.read(file, _FOREVER) for file in (folder / "assets").iterdir()}
    assets["/"] = Asset.read(folder / "index.html", "no-cache")
    assets["/docs"] = Asset.read(folder / "docs.html", "no-cache")
    assets["/icon.svg"] = Asset.read(folder / "icon.svg", "no-cache")
    policy = SECURITY_POLICY.replace("style-src 'self'", _RUNBOOK_STYLE_POLICY)
    assets |= {path: Asset.of(page, "text/html", "no-cache", policy) for path, page in runbook_pages().items()}
    return assets


def make_router() -> APIRouter:
    """One route per file: what is not built does not exist."""
    router = APIRouter()
    router.routes.extend(
        Route(path, _responder(asset), methods=["GET", "HEAD"], include_in_schema=False)
        for path, asset in sorted(built_files().items())
    )
    return router


def _responder(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        zips = "gzip" in request.headers.get("accept-encoding", "")
        headers = {
            **_HEADERS,
            "Content-Security-Policy": asset.security_policy,
            "ETag": asset.etag,
            "Cache-Control": asset.cache,
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        if zips:
            headers["Content-Encoding"] = "gzip"
        return Response(asset.zipped if zips else asset.content, media_type=asset.media_type, headers=headers)

    return respond


def is_asset_path(path: str) -> bool:
    """Whether it is one of the page's files. Also takes paths that no file has: they are not found."""
    return path in ("/", "/docs", "/icon.svg") or path.startswith(("/assets/", RUNBOOKS))


# --- runbooks: the files of docs/runbooks, which the package has with it; links between them lead on -----------------

RUNBOOKS = "/runbooks/"
_RUNBOOK_LINK = re.compile(r"\[([^\[\]]+)\]\((Optimus\w+|README)\.md\)")
_RUNBOOK_STYLE = (
    "body{max-width:80ch;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;white-space:pre-wrap}"
    ":root{color-scheme:light dark}"
)
_RUNBOOK_STYLE_POLICY = "style-src 'unsafe-inline'"


def runbook_pages() -> dict[str, bytes]:
    """Each runbook as a page of HTML, by the path that it is served at; the list of all at `RUNBOOKS` itself."""
    found = {path.stem: path.read_text("utf-8") for path in sorted(_runbook_folder().glob("*.md"))}
    return {RUNBOOKS + name.replace("README", ""): _runbook_page(text).encode() for name, text in found.items()}


def _runbook_page(markdown: str) -> str:
    """The text of a runbook as a page. Pure."""
    title = markdown.partition("\n")[0].lstrip("# ")
    body = _RUNBOOK_LINK.sub(
        lambda link: f'<a href="{RUNBOOKS}{link[2].replace("README", "")}">{link[1]}</a>', escape(markdown)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_RUNBOOK_STYLE}</style><body>{body}"
    )


def _runbook_folder() -> Path:
    """Inside the package where it was installed from a wheel, else in the repository."""
    package = Path(str(files("optimus_service")))
    inside = package / "runbooks"
    return inside if inside.is_dir() else package.parents[1] / "docs" / "runbooks"
