"""The tests' OpenID provider as a process, and people with browsers who sign in there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
from tests.service.api.openid_provider import CLIENT_ID, CLIENT_SECRET

ROOT = Path(__file__).parents[3]
PUBLIC_URL = "http://127.0.0.1:8080"
GROUPS: dict[str, Any] = {
    "roles": {"ml-admins": "administrator", "ml-operators": "operator"},
    "projects": {"vision": {"vision": "member"}, "guests": {"vision": "viewer", "speech": "viewer"}},
}
_FIELD = re.compile(r'name="?([\w-]+)"? value=["\']([^"\']*)["\']')


@dataclass
class RunningProvider:
    """The provider of `openid_provider`, serving."""

    issuer: str
    client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, verify=False, timeout=30))

    def settings(self, public_url: str = PUBLIC_URL, **changes: Any) -> dict[str, Any]:
        """What the service is told of it."""
        return {
            "issuer": self.issuer,
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            "public_url": public_url,
            **GROUPS,
            **changes,
        }

    def person(self, name: str, *groups: str) -> None:
        """Make somebody, or change their groups."""
        self._tell("people", {"name": name, "groups": list(groups)})

    def rotate(self) -> None:
        """Let it sign with a new key."""
        self._tell("rotate", {})

    def _tell(self, what: str, body: dict[str, Any]) -> None:
        answer = self.client.post(urljoin(self.issuer, f"/test/{what}"), json=body)
        assert answer.status_code == 204, answer.text


class Browser:
    """Somebody's browser at the provider: keeps its cookies, fills in its forms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client = httpx.Client(trust_env=False, verify=False, timeout=30, follow_redirects=True)

    def sign_in(self, url: str, back_to: str = PUBLIC_URL) -> str:
        """Sign in at the address that the service led to; the address that the provider leads back to."""
        answer = self.client.get(url, follow_redirects=False)
        while not answer.headers.get("location", "").startswith(back_to):
            answer = self._next(answer)
        return answer.headers["location"]

    def enter(self, url: str, user_code: str, action: str = "accept") -> None:
        """Enter the code of a device."""
        page = self.client.get(url)
        if "password" in page.text:
            page = self._sent(page)
        page = self._sent(page, user_code=user_code)
        page = self._sent(page, action=action)
        assert page.is_success, page.text

    def _next(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_redirect:
            return self.client.get(urljoin(str(answer.url), answer.headers["location"]), follow_redirects=False)
        assert answer.is_success, answer.text
        return self._sent(answer, follow_redirects=False)

    def _sent(self, page: httpx.Response, *, follow_redirects: bool = True, **values: str) -> httpx.Response:
        hidden = {name: unescape(value) for name, value in _FIELD.findall(page.text)}
        entered = {"username": self.name, "password": self.name} if "password" in page.text else {}
        return self.client.post(page.url, data={**hidden, **entered, **values}, follow_redirects=follow_redirects)


@contextmanager
def running_provider(folder: Path, callback: str = f"{PUBLIC_URL}/v1/sso/callback") -> Iterator[RunningProvider]:
    """The provider in a process of its own."""
    command = [sys.executable, "-m", "tests.service.api.openid_provider", str(folder), callback]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            provider = RunningProvider(process.stdout.readline().strip())
            assert provider.issuer.startswith("http://127.0.0.1:"), "the provider did not start"
            yield provider
            provider.client.close()
        finally:
            process.terminate()
