"""Connections: who does not know the token, or is not of this membership epoch, gets nowhere."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from tests.workers.protocol.conftest import TOKEN as JOB_TOKEN
from tests.workers.protocol.conftest import Job
from torch import Tensor

from optimus_workers.checkpoint.storage import LocalStorage
from optimus_workers.errors import ConnectionOver, WireError
from optimus_workers.server import connection as connection_module
from optimus_workers.server.range_state import RangeState, collect
from optimus_workers.server.run import DataListener
from optimus_workers.server.service import ShardService, make_shard
from optimus_workers.telemetry.usage import CpuPacer
from optimus_workers.wire import control, data
from optimus_workers.wire.control import CoordinatorGone, CoordinatorLost, dial
from optimus_workers.wire.data import connect, receive_frame
from optimus_workers.wire.frames import FrameType, Header
from optimus_workers.wire.memory import CAN_SHARE, shareable_floats
from optimus_workers.wire.messages import Assume, Exit, Failed, Hello, Join
from optimus_workers.wire.sockets import Transport
from optimus_workers.wire.values import Address, ServerRange, Source, TaskProfile, TaskRole, UpdateRule
from optimus_workers.worker.session import DataOptions, Exchanged, Session

TOKEN = "secret"
PROFILE = TaskProfile(600_000, 600_000, 600_032, 10, 1, 1, UpdateRule("sgd", 0.9, False, 0.0, (0.9, 0.99), 1e-8))


class RunningServer:
    """A server's data plane, holding version 5 of [0, 600_032) in epoch 3."""

    def __init__(self) -> None:
        self.service = ShardService(CpuPacer(None))
        self.service.epoch = 3
        self.state = RangeState.zeros(5, 0, PROFILE.total_floats, 2)
        self.state.sections[0][:] = np.arange(PROFILE.total_floats)
        self.state.sections[1][:] = -self.state.sections[0]
        assume = Assume(3, 5, 0, PROFILE.total_floats, PROFILE, 1, False, ())
        self.service.candidate = make_shard(assume, self.state)
        self.failures: list[BaseException] = []
        self.listener = DataListener("127.0.0.1", TOKEN, self.service, self.failures.append)
        self.listener.start()
        self.address: Address = self.listener.address

    def close(self) -> None:
        self.listener.close()
        self.service.halt(99)
        assert not self.failures


@pytest.fixture
def server() -> Iterator[RunningServer]:
    running = RunningServer()
    yield running
    running.close()


def test_a_wrong_token_is_refused(server: RunningServer) -> None:
    with pytest.raises((ConnectionOver, ConnectionError)):
        connect(server.address, "guess", 3, 0)


def test_another_epoch_is_refused(server: RunningServer) -> None:
    with pytest.raises((ConnectionOver, ConnectionError)):
        connect(server.address, TOKEN, 2, 0)


@pytest.mark.parametrize(
    "frame",
    [
        Header(FrameType.PULL, epoch=2).encode(),
        Header(FrameType.PULL, epoch=3, source=1).encode(),
        Header(FrameType.PARAMETERS, epoch=3, length=64).encode(),
        Header(FrameType.PUSH, epoch=3, step=5, offset=8, length=64).encode(),
        Header(FrameType.WELCOME, epoch=3, length=32).encode() + bytes(32),
        b"GET / HTTP/1.1\r\n" + bytes(64),
    ],
)
def test_a_frame_that_must_not_come_ends_the_connection(server: RunningServer, frame: bytes) -> None:
    with closing(connect(server.address, TOKEN, 3, 0)) as connection:
        connection.sendall(frame)
        with pytest.raises((ConnectionOver, ConnectionError)):
            receive_frame(connection, FrameType.PARAMETERS)


def test_frames_before_the_handshake_end_the_connection(server: RunningServer) -> None:
    with closing(socket.create_connection(server.address, timeout=60)) as connection:
        receive_frame(connection, FrameType.CHALLENGE)
        connection.sendall(Header(FrameType.PULL, epoch=3).encode())
        with pytest.raises((ConnectionOver, ConnectionError)):
            receive_frame(connection, FrameType.WELCOME)


def push_and_pull(session: Session, step: int, push: Tensor) -> Exchanged:
    session.begin_push(step, 0.5, push)
    session.finish_push()
    return session.wait()


@pytest.mark.parametrize("transport", Transport)
def test_a_worker_pulls_pushes_and_gets_the_result(server: RunningServer, transport: Transport) -> None:
    everything = ServerRange(server.address, 0, PROFILE.total_floats, server.listener.local)
    join = Join(3, 5, 0, 1, 0, 1, (everything,), False, False)
    session = Session(join, PROFILE.parameter_floats, DataOptions(transport))
    values = torch.zeros(PROFILE.total_floats)
    memory = shareable_floats(PROFILE.total_floats)
    session.open(TOKEN, values, memory)
    session.fetch(values)
    assert session.version == 5
    assert torch.equal(values, torch.arange(PROFILE.total_floats).float())
    before = values.clone()
    memory.floats.fill(1.0)
    exchanged = push_and_pull(session, 5, torch.from_numpy(memory.floats))
    assert exchanged.version == 6
    is_shared = transport is Transport.AUTO and CAN_SHARE
    assert (exchanged.sent_bytes < 100) if is_shared else (exchanged.sent_bytes > 4 * PROFILE.total_floats)
    assert exchanged.received_bytes > 4 * PROFILE.total_floats
    momentum = -before * 0.9 + 1
    torch.testing.assert_close(
        values[: PROFILE.parameter_floats], (before - 0.5 * momentum)[: PROFILE.parameter_floats]
    )
    session.abort()
    with pytest.raises((WireError, OSError)):
        push_and_pull(session, 6, values)
    session.close()


def test_a_range_is_collected_from_a_server_and_from_own_memory(server: RunningServer, tmp_path: Path) -> None:
    own = RangeState(5, 600_000, 600_032, [np.full(32, value, np.float32) for value in (7.0, 8.0)])
    sources = (
        Source(0, 600_000, 5, task="other", address=server.address),
        Source(600_000, 600_032, 5, task="me"),
    )
    assume = Assume(3, 5, 100_000, 600_032, PROFILE, 1, False, sources)
    state = collect(assume, "me", [own], TOKEN, LocalStorage(tmp_path))
    assert state is not None
    assert np.array_equal(state.sections[0][:500_000], server.state.sections[0][100_000:600_000])
    assert np.array_equal(state.sections[1][:500_000], server.state.sections[1][100_000:600_000])
    assert set(state.sections[0][500_000:].tolist()) == {7.0}
    assert set(state.sections[1][500_000:].tolist()) == {8.0}


def test_a_version_that_is_gone_is_an_error_not_a_wrong_range(server: RunningServer, tmp_path: Path) -> None:
    missing = Source(0, 16, 4, task="other", address=server.address)
    with pytest.raises(WireError, match="MISSING"):
        collect(Assume(3, 4, 0, 16, PROFILE, 1, False, (missing,)), "me", [], TOKEN, LocalStorage(tmp_path))


def test_a_handshake_byte_by_byte_is_cut_off_in_time(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_SECONDS", 1.0)
    with closing(socket.create_connection(server.address, timeout=60)) as stranger:
        receive_frame(stranger, FrameType.CHALLENGE)
        hello, n_sent = Header(FrameType.HELLO, epoch=3, length=64).encode() + bytes(36), 0
        with suppress(OSError):
            # A byte every tenth of a second: never silent for long. A whole HELLO would take ten seconds.
            for byte in hello:
                stranger.send(bytes([byte]))
                n_sent += 1
                stranger.settimeout(0.1)
                with suppress(TimeoutError):
                    if not stranger.recv(1):
                        break
        assert n_sent < len(hello)


def test_a_listener_outlives_a_shortage_of_descriptors(server: RunningServer) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = [socket.socket() for _ in range(8)]
    strangers = [socket.create_connection(server.address, timeout=60) for _ in range(3)]
    for stranger in strangers:
        receive_frame(stranger, FrameType.CHALLENGE)
    try:
        # Below what is open already: the callers' sockets exist, and the listener can accept none of them.
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
        for connection in connections:
            connection.settimeout(60)
            connection.connect(server.address)
        for stranger in strangers:  # given up for the sake of the others
            assert stranger.recv(1) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for connection in [*connections, *strangers]:
        connection.close()
    for local in (None, server.listener.local):
        connect(server.address, TOKEN, 3, 0, local=local).close()


def test_too_many_handshakes_cost_the_oldest(server: RunningServer) -> None:
    listener = DataListener("127.0.0.1", TOKEN, server.service, server.failures.append, max_handshakes=2)
    listener.start()
    with ExitStack() as stack:
        strangers = []
        for _ in range(4):
            stranger = stack.enter_context(socket.create_connection(listener.address, timeout=60))
            receive_frame(stranger, FrameType.CHALLENGE)
            strangers.append(stranger)
        assert [stranger.recv(1) for stranger in strangers[:2]] == [b"", b""]
        connect(listener.address, TOKEN, 3, 0).close()
    listener.close()


def test_a_server_that_answers_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "HANDSHAKE_SECONDS", 1.0)
    with _drip() as address, pytest.raises(TimeoutError, match="no handshake within 1 s"):
        connect(address, TOKEN, 3, 0)


@contextmanager
def _drip() -> Iterator[Address]:
    """Something that sends a byte every tenth of a second to the first caller, for as long as that listens."""

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            for _ in range(600):
                connection.send(b" ")
                if over.wait(0.1):
                    return

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        yield listener.getsockname()
        over.set()
        thread.join(60)


# --- control ---------------------------------------------------------------------------------------------------------


def hello(name: str) -> Any:
    return lambda host: Hello(name, TaskRole.WORKER, 0, "", "")


def test_a_stranger_is_no_coordinator_and_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DIAL_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = threading.Thread(target=_talk, args=(listener,))
        stranger.start()
        with pytest.raises(CoordinatorGone):
            dial(listener.getsockname(), TOKEN, hello("w"), lambda _: None, threading.Event())
        stranger.join(60)


def _talk(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b'{"type":"Challenge","nonce":"00"}\n')
        connection.recv(4096)
        connection.sendall(b'{"type":"Welcome","proof":"00"}\n')
        connection.recv(4096)


def test_nobody_there_is_found_out_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DIAL_SECONDS", 0.2)
    monkeypatch.setattr(control, "DIAL_PAUSE_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(CoordinatorGone):
        dial(address, TOKEN, hello("w"), lambda _: None, threading.Event())


def test_a_coordinator_takes_in_whoever_knows_the_token_and_nobody_else(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    address = ("127.0.0.1", job.port)
    heard: SimpleQueue[object] = SimpleQueue()
    friend = dial(address, JOB_TOKEN, hello("job-worker-0-0"), heard.put, threading.Event())
    friend.send(Failed("Traceback of the user"))
    assert isinstance(heard.get(timeout=60), Exit)

    monkeypatch.setattr(control, "DIAL_SECONDS", 0.0)
    with pytest.raises(CoordinatorGone):
        dial(address, "guess", hello("job-worker-0-0"), heard.put, threading.Event())
    friend.close()
    assert isinstance(heard.get(timeout=60), CoordinatorLost)
    assert job.exit_code("job-coordinator-0-0") == 3
    assert job.wait_for_result()["error"] == "Traceback of the user"


def test_a_message_without_a_rule_is_logged_and_changes_nothing(make_job: Callable[..., Job]) -> None:
    job = make_job()
    heard: SimpleQueue[object] = SimpleQueue()
    task = dial(("127.0.0.1", job.port), JOB_TOKEN, hello("job-worker-0-0"), heard.put, threading.Event())
    task.send(hello("job-worker-0-0")(""))
    job.wait_for("it is logged", lambda: "Hello of job-worker-0-0 has no rule in the phase gathering" in job.logs())
    task.send(Failed("Traceback of the user"))
    assert isinstance(heard.get(timeout=60), Exit)
    task.close()
    assert job.wait_for_result()["error"] == "Traceback of the user"


def test_a_coordinator_that_answers_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DIAL_SECONDS", 0.0)
    monkeypatch.setattr(control, "HANDSHAKE_SECONDS", 1.0)
    with _drip() as address, pytest.raises(CoordinatorGone, match="no handshake within 1 s"):
        dial(address, TOKEN, hello("w"), lambda _: None, threading.Event())


def test_a_coordinator_outlives_a_shortage_of_descriptors(make_job: Callable[..., Job]) -> None:
    job = make_job()
    address = ("127.0.0.1", job.port)
    job.wait_for("the coordinator listens", lambda: _can_connect(address))
    pid = job.processes["job-coordinator-0-0"].pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, hard))
    with closing(socket.create_connection(address, timeout=60)):
        job.wait_for("it is short of descriptors", lambda: "no connection can be accepted now" in job.logs())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert job.logs().count("no connection can be accepted now") < 5
    heard: SimpleQueue[object] = SimpleQueue()
    dial(address, JOB_TOKEN, hello("job-worker-0-0"), heard.put, threading.Event()).close()
    assert isinstance(heard.get(timeout=60), CoordinatorLost)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"x" * 2_000_000])
def test_noise_does_not_disturb_a_coordinator(make_job: Callable[..., Job], noise: bytes) -> None:
    job = make_job()
    address = ("127.0.0.1", job.port)
    job.wait_for("the coordinator listens", lambda: _can_connect(address))
    with closing(socket.create_connection(address, timeout=60)) as connection, suppress(ConnectionError):
        connection.sendall(noise)
        while connection.recv(4096):
            pass  # the challenge, then the end
    job.service.want([], "cancel")
    assert job.exit_code("job-coordinator-0-0") == 0


def _can_connect(address: Address) -> bool:
    with suppress(ConnectionError):
        socket.create_connection(address, timeout=60).close()
        return True
    return False
