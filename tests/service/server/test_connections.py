"""Connections that send nothing, or little, or read nothing: they stop nobody else."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.clusters.cluster_harness import wait_until
from tests.service.server.test_server import WAIT_SECONDS, serving

from optimus_contract.limits import MAX_BATCH_BODY_BYTES
from optimus_service.process.connections import MAX_CONNECTIONS, most_connections
from optimus_service.push.feed import MAX_SUBSCRIBERS

TOKEN = "a token of sixteen or more"
DESCRIPTORS = 256
SHORT = "import optimus_service.process.connections as c; c._SECONDS.update(head=0.5, body=0.5)"


@given(st.integers(-1, 2**40))
def test_connections_leave_descriptors_to_all_else(descriptors: int) -> None:
    most = most_connections(descriptors)
    assert 1 <= most <= MAX_CONNECTIONS
    assert descriptors < 2 or most <= descriptors - min(512, descriptors // 2)


@contextmanager
def idle_connections(address: tuple[str, int], n_connections: int, sent: bytes) -> Iterator[list[socket.socket]]:
    connections: list[socket.socket] = []
    try:
        for _ in range(n_connections):
            connection = socket.create_connection(address, timeout=30)
            connections.append(connection)
            connection.sendall(sent)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@pytest.mark.parametrize("sent", [b"", b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n"])
def test_idle_connections_stop_neither_the_api_nor_rounds_nor_fill_the_log(tmp_path: Path, sent: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    printed: list[str] = []
    try:
        with serving(tmp_path, OPTIMUS_TOKEN=TOKEN, OPTIMUS_LOG_LEVEL="warning") as (process, told):
            assert process.stderr is not None
            reader = threading.Thread(target=printed.extend, args=(process.stderr,))
            reader.start()
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            with idle_connections(address_of(told["url"]), 3 * DESCRIPTORS, sent):
                headers = {"Authorization": f"Bearer {TOKEN}"}
                with httpx.Client(base_url=told["url"], trust_env=False, timeout=60, headers=headers) as client:
                    assert client.get("/healthz").status_code == 200
                    before = client.get("/v1/rounds").json()["rounds"]
                    spec = {"name": "a-job", "task": "optimus_workers.zoo.digits:mlp", "workers": {"max": 1}}
                    assert client.post("/v1/jobs", json=spec, timeout=60).status_code == 201
                    wait_until("a round succeeds", lambda: _succeeded(client, before))
                    job_id = client.get("/v1/jobs").json()["jobs"][0]["id"]
                    assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
                    wait_until("the job has ended", lambda: _state(client, job_id) == "cancelled")
            process.terminate()
            assert process.wait(WAIT_SECONDS) == 0
            reader.join()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sum(map(len, printed)) < 8_000, "".join(printed)[:4000]


def _succeeded(client: httpx.Client, before: list[object]) -> bool:
    rounds = client.get("/v1/rounds").json()["rounds"]
    return len(rounds) > len(before) and rounds[0]["error"] is None


def _state(client: httpx.Client, job_id: str) -> object:
    return client.get(f"/v1/jobs/{job_id}").json()["state"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nA",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nA",
    ],
)
def test_a_request_that_does_not_come_to_an_end_is_closed(tmp_path: Path, sent: bytes) -> None:
    """Bytes that drip in do not move its deadline."""
    with serving(tmp_path, first=SHORT) as (process, told):
        with socket.create_connection(address_of(told["url"]), timeout=WAIT_SECONDS) as connection:
            connection.sendall(sent)
            done = threading.Event()
            dripping = threading.Thread(target=_drip, args=(connection, done))
            dripping.start()
            with suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
            done.set()
            dripping.join()
        process.terminate()
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    assert "Traceback" not in printed


JSON_HEADERS = b" HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
HALF_BODIES = [
    b"POST /v1/jobs" + JSON_HEADERS + b"Content-Length: 100\r\n\r\n{",
    b"POST /v1/jobs" + JSON_HEADERS + b"Transfer-Encoding: chunked\r\n\r\n40\r\n{",
    b"DELETE /v1/projects/a-project" + JSON_HEADERS + b"Content-Length: 100\r\n\r\n{",
]
"""To calls that take fields, and to one that takes none."""


def _answer(connection: socket.socket) -> tuple[bytes, dict[str, object]]:
    """Status and problem document of what is answered until the connection is closed."""
    head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    return head.split()[1], json.loads(body)


def _refused(answered: tuple[bytes, dict[str, object]], status: int, kind: str) -> bool:
    return answered[0] == str(status).encode() and answered[1]["type"] == f"urn:optimus:problem:{kind}"


@pytest.mark.parametrize("limit", ["body", "pause"])
def test_a_body_that_does_not_come_is_answered_and_logged_as_a_timeout(tmp_path: Path, limit: str) -> None:
    first = f"import optimus_service.process.connections as c; c._SECONDS.update({limit}=0.5)"
    with serving(tmp_path, first=first) as (process, told):
        for sent in HALF_BODIES:
            with socket.create_connection(address_of(told["url"]), timeout=15) as connection:
                connection.sendall(sent)
                assert _refused(_answer(connection), 408, "timeout")
        process.terminate()
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    assert printed.count("status=408") == len(HALF_BODIES)
    assert "Traceback" not in printed


def test_a_body_that_comes_slowly_and_does_not_pause_has_time(tmp_path: Path) -> None:
    """Twice as quick as the slowest rate allowed, and four times as long as a body that stands still."""
    first = f"{SHORT}; c._SECONDS.update(pause=5); c.BODY_BYTES_PER_SECOND = 100_000"
    n_pieces, piece = 20, b" " * 20_000
    with (
        serving(tmp_path, first=first) as (_, told),
        socket.create_connection(address_of(told["url"]), timeout=WAIT_SECONDS) as connection,
    ):
        length = b"Content-Length: %d\r\n\r\n" % (n_pieces * len(piece) + 1)
        connection.sendall(b"POST /v1/jobs" + JSON_HEADERS + length)
        for _ in range(n_pieces):
            connection.sendall(piece)
            time.sleep(0.1)
        connection.sendall(b"1")
        assert b" 422 " in _head(connection)


def test_a_chunk_larger_than_any_body_is_refused_before_it_comes(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, told):
        for size in (b"f" * 20, b"%x" % (MAX_BATCH_BODY_BYTES + 1)):
            for begins in (b"", b"2\r\n{}\r\n"):
                with socket.create_connection(address_of(told["url"]), timeout=15) as connection:
                    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + begins + size + b"\r\n"
                    connection.sendall(b"POST /v1/jobs" + JSON_HEADERS + chunks)
                    assert _refused(_answer(connection), 413, "too-large")
        process.terminate()
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    assert "Traceback" not in printed
    assert " error" not in printed


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_error_of_the_service(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, told):
        for sent in HALF_BODIES:
            with idle_connections(address_of(told["url"]), 1, sent):
                time.sleep(0.2)
        process.terminate()
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    assert printed.count("status=400") == len(HALF_BODIES)
    assert "Traceback" not in printed


def test_requests_that_are_not_done_when_the_service_is_stopped_leave_no_tracebacks(tmp_path: Path) -> None:
    """Neither those whose body never comes, nor an answer that is never read, nor what hangs in the service itself."""
    first = (
        "import asyncio, optimus_service.api.http.body as b; read = b.BoundedRequest._read\n"
        "b.BoundedRequest._read = lambda self: (\n"
        "    asyncio.sleep(60) if self.url.path.endswith('/plan') else read(self))"
    )
    hangs = b"POST /v1/plan" + JSON_HEADERS + b"Content-Length: 2\r\n\r\n{}"
    with serving(tmp_path, first=first) as (process, told), socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = address_of(told["url"])
        unread.connect(address)
        unread.sendall(200 * b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connections = [socket.create_connection(address, timeout=30) for _ in range(len(HALF_BODIES) + 1)]
        for connection, sent in zip(connections, [*HALF_BODIES, hangs], strict=True):
            connection.sendall(sent)
        time.sleep(1.0)
        process.terminate()
        for connection in connections:
            with connection:
                assert _refused(_answer(connection), 503, "unavailable")
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert printed.count("status=503") == len(connections)
    assert "status=500" not in printed
    assert "Traceback" not in printed
    assert "Exception" not in printed


def _drip(connection: socket.socket, done: threading.Event) -> None:
    while not done.wait(0.1):
        try:
            connection.sendall(b"a")
        except OSError:
            return


def test_more_streams_than_there_may_be_are_refused_each_for_itself(tmp_path: Path) -> None:
    n_more = 30
    with serving(tmp_path) as (process, told):
        request = b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with idle_connections(address_of(told["url"]), MAX_SUBSCRIBERS + n_more, request) as connections:
            heads = [_head(connection) for connection in connections]
        process.terminate()
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    refused = [head for head in heads if b" 503 " in head]
    assert len(refused) == n_more
    assert all(b"retry-after: " in head.lower() for head in refused)
    assert all(b" 200 " in head for head in heads if head not in refused)
    assert "Traceback" not in printed


def _head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        received = connection.recv(4096)
        assert received
        head += received
    return head.split(b"\r\n\r\n")[0]


def test_an_answer_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    first = "import optimus_service.process.connections as c; c.WRITE_SECONDS = 0.5"
    with serving(tmp_path, first=first) as (_, told), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address_of(told["url"]))
        # Many megabytes of answers: more than the buffers on the way hold.
        connection.sendall(200 * b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.setblocking(False)
        wait_until("it is closed", lambda: _is_reset(connection))


def _is_reset(connection: socket.socket) -> bool:
    try:
        connection.send(b" ")
    except BlockingIOError:  # the service does not read on before it has answered
        return False
    except ConnectionError:
        return True
    return False


def test_bodies_that_are_not_complete_hold_little_together(tmp_path: Path) -> None:
    """The one that has taken longest makes room for others."""
    first = "import optimus_service.process.connections as c; c.MAX_UNFINISHED_BYTES = 350_000"
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\nContent-Length: 100001\r\n\r\n"
    with serving(tmp_path, first=first) as (process, told):
        with idle_connections(address_of(told["url"]), 4, head) as connections:
            for connection in connections:
                connection.sendall(b" " * 100_000)
            wait_until("the first is given up", lambda: _is_reset_on_reading(connections[0]))
            for connection in connections[1:]:
                connection.sendall(b"1")
                assert b" 422 " in _head(connection)
        process.terminate()
        _, printed = process.communicate(timeout=WAIT_SECONDS)
    assert "Traceback" not in printed


def _is_reset_on_reading(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_those_who_wait_leave_connections_to_others(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, told):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        request = b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with idle_connections(address_of(told["url"]), most_connections(DESCRIPTORS), request) as connections:
            heads = [_head(connection) for connection in connections]
            assert httpx.get(f"{told['url']}/healthz", trust_env=False, timeout=30).status_code == 200
        process.terminate()
        process.communicate(timeout=WAIT_SECONDS)
    assert sum(b" 200 " in head for head in heads) == most_connections(DESCRIPTORS) // 4
