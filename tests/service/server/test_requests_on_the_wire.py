"""Requests as bytes on a socket: what no HTTP client would send, and who may send it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.service.server.test_server import serving

from optimus_service.api.access.auth import is_open_path
from optimus_service.process.connections import MAX_HEAD_BYTES

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
    for path in ("/v1/jobs", "/v1/jobs/a-job/predictions", "/v1/trace", "/metrics", "/v1/stream", "/openapi.json"):
        assert status(loopback, "GET", path, "127.0.0.1", f"Sec-Fetch-Site: {site}") == 403, path


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_without_a_token_the_services_own_page_and_the_address_bar_may_ask(
    loopback: tuple[str, int], site: str
) -> None:
    assert status(loopback, "GET", "/v1/jobs", "127.0.0.1", f"Sec-Fetch-Site: {site}") == 200


# --- what is no HTTP -------------------------------------------------------------------------------------------------

_POST = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"not http at all\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"G ET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n", 505),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + 17_000 * b"a", 431),
        (b"GET /" + 17_000 * b"a", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + 17_000 * b"a" + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + 100_000 * b"a" + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + 1_000 * b"A: aaaaaaaaaaaaaaaaa\r\n" + b"\r\n", 431),
        (_POST + b"Content-Length: one\r\n\r\n{}", 400),
        (_POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (_POST + b"Transfer-Encoding: gzip\r\n\r\n{}", 501),
        (_POST + b"Transfer-Encoding: chunked\r\n\r\nno length\r\n{}\r\n", 400),
        (_POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{} and more\r\n0\r\n\r\n", 400),
    ],
)
def test_what_is_no_http_is_answered_by_a_problem_document(
    loopback: tuple[str, int], sent: bytes, expected: int
) -> None:
    answer = exchanged(loopback, sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    problem = json.loads(body)
    assert head.split()[1] == str(expected).encode()
    assert b"\r\nContent-Type: application/problem+json" in head
    assert f"\r\nContent-Length: {len(body)}".encode() in head
    assert problem["status"] == expected
    assert problem["type"] == "urn:optimus:problem:invalid-http"
    assert problem["title"]
    assert problem["detail"]
    assert len(answer) < 1000
    assert status(loopback, "GET", "/healthz", "127.0.0.1") == 200


@pytest.mark.parametrize("head", [b"HTTP/1.0\r\n", b"HTTP/1.0\r\nHost: x\r\n", b"HTTP/1.2\r\nHost: x\r\n"])
def test_every_http_of_the_first_major_version_is_answered(loopback: tuple[str, int], head: bytes) -> None:
    """Health checks and proxies still send 1.0, without a `Host`; what comes after 1.1 is read as 1.1 (RFC 9110)."""
    answer = exchanged(loopback, b"GET /healthz " + head + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("pieces", [1, 2, 20])
def test_a_head_is_as_long_as_it_may_be_however_it_comes(loopback: tuple[str, int], pieces: int) -> None:
    begins, ends = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nA: ", b"\r\n\r\n"
    for more, expected in ((0, b"200"), (1, b"431")):
        sent = begins + (MAX_HEAD_BYTES + more - len(begins) - len(ends)) * b"a" + ends
        size = -(-len(sent) // pieces)
        with socket.create_connection(loopback, timeout=30) as connection, suppress(ConnectionResetError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(sent), size):
                connection.sendall(sent[at : at + size])
            assert connection.makefile("rb").read().split()[1] == expected


def test_a_second_request_in_one_piece_with_the_first_has_the_same_bound(loopback: tuple[str, int]) -> None:
    first = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    second = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + 17_000 * b"a" + b"\r\n\r\n"
    answer = exchanged(loopback, first + second)
    assert [each.split()[0] for each in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"431"]


def test_a_body_with_two_lengths_is_refused_and_nothing_after_it_is_read(loopback: tuple[str, int]) -> None:
    """A proxy in front might take the second request for the first one's body."""
    hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    sent = _POST + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(hidden)) + hidden
    answer = exchanged(loopback, sent)
    assert answer.split()[1] == b"400"
    assert b"not both" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("header", ["Idempotency-Key: a", "Content-Type: application/json"])
def test_a_header_that_may_come_once_is_refused_when_it_comes_twice(loopback: tuple[str, int], header: str) -> None:
    assert status(loopback, "POST", "/v1/jobs", "127.0.0.1", header, header) == 400


def exchanged(address: tuple[str, int], sent: bytes) -> bytes:
    """All that is answered until the service closes the connection."""
    with socket.create_connection(address, timeout=30) as connection, suppress(ConnectionResetError):
        with suppress(BrokenPipeError):
            connection.sendall(sent)
        return connection.makefile("rb").read()
    raise AssertionError("the connection was reset before an answer came")


def test_broken_requests_and_wishes_for_websockets_fill_no_log(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, told):
        url = urlsplit(told["url"])
        address = (str(url.hostname), int(url.port or 0))
        upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")
        for _ in range(5):
            lines = ["GET /healthz HTTP/1.1", "Host: 127.0.0.1", *upgrade, "", ""]
            with socket.create_connection(address, timeout=30) as connection:
                connection.sendall("\r\n".join(lines).encode())
                assert connection.makefile("rb").readline().split()[1] == b"200"
            broken_body = _POST + b"Transfer-Encoding: chunked\r\n\r\nno length\r\n{}\r\n"
            assert b" 400 " in exchanged(address, broken_body)
        process.terminate()
        _, printed = process.communicate(timeout=240)
    assert "ebsocket" not in printed.lower()
    assert "pgrade" not in printed
    assert "Traceback" not in printed
    assert " error" not in printed
