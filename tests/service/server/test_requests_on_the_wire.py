"""Requests as bytes on a socket: what no HTTP client would send, and who may send it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.service.server.test_server import serving

from optimus_service.api.auth import is_open_path

TOKEN = "a token of sixteen or more"
HOSTS = ["x/healthz?", "x/readyz#", "x/assets/", "127.0.0.1/healthz?", "[::1]/healthz?", "x?", "x#", "", "x/v1/jobs?"]
PROTECTED = [
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/a-job"),
    ("GET", "/v1/jobs/a-job/logs"),
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/a-job/cancel"),
    ("POST", "/v1/jobs/a-job/telemetry"),
    ("GET", "/v1/jobs/a-job/membership"),
    ("POST", "/v1/plan"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/rounds"),
    ("GET", "/v1/stream"),
    ("GET", "/v1/cluster/history"),
    ("PUT", "/v1/projects/p"),
    ("DELETE", "/v1/projects/p"),
    ("GET", "/v1/trace"),
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
]
TARGETS = [
    "http://x/healthz",
    "http://127.0.0.1/v1/jobs",
    "//healthz",
    "//v1/jobs",
    "/healthz/",
    "/healthz/../v1/jobs",
    "/healthz%3Fx",
    "/healthz%23x",
    "/healthz%0A",
    "/healthz%00",
    "/HEALTHZ",
    "/healthz;x",
    "/assets%2F..%2Fv1%2Fjobs%0A/..",
    "/v1/jobs%0A",
    "/v1/jobs/",
    "/V1/jobs",
    "/v1%2Fjobs",
    "/v1/jobs/a-job/telemetry%0A",
    "/v1/jobs/a-job%2Ftelemetry",
    "/v1/jobs/a-job/membership%3F",
    "/v1/./jobs",
    "/v1/../v1/jobs",
    "*",
]
"""All of these need a token, whether something is there or not."""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Host and port of a service with a token."""
    with serving(tmp_path_factory.mktemp("closed"), OPTIMUS_TOKEN=TOKEN) as (_, told):
        url = urlsplit(told["url"])
        assert url.hostname is not None
        assert url.port is not None
        yield url.hostname, url.port


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Host and port of a service without a token."""
    with serving(tmp_path_factory.mktemp("open")) as (_, told):
        url = urlsplit(told["url"])
        assert url.hostname is not None
        assert url.port is not None
        yield url.hostname, url.port


def status(address: tuple[str, int], method: str, target: str, host: str = "x", *headers: str) -> int:
    """The status of the answer to one request, which is sent as it is."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", "Content-Length: 0", *headers]
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        answer = connection.makefile("rb").readline()
    return int(answer.split()[1])


@pytest.mark.parametrize("host", HOSTS)
def test_no_host_header_opens_a_path(closed: tuple[str, int], host: str) -> None:
    for method, path in PROTECTED:
        assert status(closed, method, path, host) in (400, 401), (method, path)


@pytest.mark.parametrize("target", TARGETS)
def test_no_spelling_of_a_path_opens_it(closed: tuple[str, int], target: str) -> None:
    for method in ("GET", "POST"):
        assert status(closed, method, target) in (400, 401), method


def test_the_open_paths_are_open(closed: tuple[str, int]) -> None:
    for path in ("/healthz", "/readyz", "/"):
        assert is_open_path(path)
        assert status(closed, "GET", path) == 200


def test_without_a_users_token_a_jobs_call_needs_the_jobs_own(loopback: tuple[str, int]) -> None:
    """A router may take a path with a line break at its end for the path without it."""
    for end, refusal in (("", 401), ("%0A", 404), ("%00", 404), ("%0D", 404)):
        for what in ("telemetry", "membership", "result"):
            assert status(loopback, "POST", f"/v1/jobs/a-job/{what}{end}", "127.0.0.1") == refusal, end


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_without_a_token_a_foreign_page_cannot_make_a_browser_ask(loopback: tuple[str, int], site: str) -> None:
    """An image or a link carries no Origin, but browsers say in Sec-Fetch-Site where a request comes from."""
    for path in ("/v1/jobs", "/v1/jobs/a-job/predictions", "/v1/trace", "/metrics", "/v1/stream", "/docs"):
        assert status(loopback, "GET", path, "127.0.0.1", f"Sec-Fetch-Site: {site}") == 403, path


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_without_a_token_the_services_own_page_and_the_address_bar_may_ask(
    loopback: tuple[str, int], site: str
) -> None:
    assert status(loopback, "GET", "/v1/jobs", "127.0.0.1", f"Sec-Fetch-Site: {site}") == 200
