"""A coordinator and a task of different releases: what one does not know is left out, or refused in clear words."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.protocol.conftest import TOKEN as JOB_TOKEN
from tests.workers.protocol.conftest import Job

from optimus_workers.errors import WireError
from optimus_workers.wire import control, protocol, secret
from optimus_workers.wire.codec import decode_line, encode_line
from optimus_workers.wire.control import CoordinatorGone, dial
from optimus_workers.wire.messages import (
    Challenge,
    CommandQuiet,
    CommandStopped,
    Done,
    Exit,
    Failed,
    Go,
    Hello,
    Limit,
    MessageTypes,
    StopCommand,
    Welcome,
)
from optimus_workers.wire.protocol import FIELDS, LEAST, MESSAGES, PROTOCOL, Peer, line_for, message_from, peer_of
from optimus_workers.wire.values import TaskRole

TOKEN = "secret"
OLD, SAME = Peer(1, 1), Peer(PROTOCOL, LEAST)
KINDS = MessageTypes.to_task | MessageTypes.from_task
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def test_the_tables_name_what_there_is() -> None:
    assert MESSAGES.keys() | FIELDS.keys() <= KINDS.keys()
    for kind, fields in FIELDS.items():
        added = {each.name: each for each in dataclasses.fields(KINDS[kind])}
        assert all(added[name].default is not dataclasses.MISSING for name in fields), "an older end leaves it out"
    numbers = [*MESSAGES.values(), *(since for fields in FIELDS.values() for since in fields.values())]
    assert {1 < each <= PROTOCOL for each in numbers} == {True}


def test_a_nonce_tells_the_protocol_and_an_older_one_tells_none() -> None:
    nonce = secret.new_nonce()
    assert peer_of(protocol.marked(nonce)) == SAME
    assert peer_of(nonce) == OLD
    assert peer_of(b"") == OLD


def test_an_older_end_is_spared_what_it_does_not_know() -> None:
    assert line_for(OLD, CommandQuiet(1, quiet=True, is_asked=False)) is None
    assert line_for(OLD, StopCommand(1, all_quiet=True)) is None, "a repetition"
    assert line_for(Peer(2, 1), Limit(9)) is None
    stop, stopped = line_for(OLD, StopCommand(1)), line_for(OLD, CommandStopped(1, 5, killed_after=2.0))
    assert stop is not None
    assert stopped is not None
    assert json.loads(stop) == {"type": "StopCommand", "epoch": 1, "at_once": False}
    assert "killed_after" not in json.loads(stopped)
    known = line_for(OLD, Hello("w", TaskRole.WORKER, 0, "", "", running_epoch=3, running_workers=2, epoch=4))
    assert known is not None
    assert {"running_workers", "epoch"}.isdisjoint(json.loads(known))
    assert line_for(SAME, StopCommand(1, all_quiet=True)) == encode_line(StopCommand(1, all_quiet=True))


@given(st.dictionaries(st.text(min_size=1, max_size=8), JSON, max_size=4), st.text(max_size=8))
def test_what_only_a_newer_end_knows_is_passed_over(more: dict[str, Any], kind: str) -> None:
    newer, known = Peer(PROTOCOL + 1, LEAST), json.loads(encode_line(Done(3, 7, 0.5, 64)))
    line = json.dumps({**more, **known}).encode()
    assert message_from(newer, line, MessageTypes.from_task) == Done(3, 7, 0.5, 64)
    other = json.dumps({**known, "type": f"New{kind}"}).encode()
    assert message_from(newer, other, MessageTypes.from_task) is None
    for each in (line, other) if set(more) - set(known) else (other,):
        with pytest.raises(WireError):
            message_from(SAME, each, MessageTypes.from_task)
    with pytest.raises(WireError, match="missing fields"):
        message_from(newer, b'{"type":"Done","epoch":1}', MessageTypes.from_task)


# --- over connections ------------------------------------------------------------------------------------------------


@contextmanager
def coordinator(mark: bytes, said: list[bytes]) -> Iterator[tuple[Any, SimpleQueue[bytes]]]:
    """One of a release that marks its nonce so, and says these lines; its address, and what it hears."""
    heard: SimpleQueue[bytes] = SimpleQueue()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            nonce = secret.new_nonce() + mark
            connection.sendall(encode_line(Challenge(nonce.hex())))
            line = stream.readline()
            if not line:
                return
            hello = decode_line(line, {"Hello": Hello})
            proof = secret.listener_proof(TOKEN, nonce, bytes.fromhex(hello.nonce), f"control {hello.task}")
            connection.sendall(encode_line(Welcome(proof.hex())) + b"".join(said))
            while line := stream.readline():
                heard.put(line)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname(), heard
        thread.join(60)


def hello(name: str) -> Callable[[str], Hello]:
    return lambda _host: Hello(name, TaskRole.WORKER, 0, "", "")


@pytest.mark.parametrize(("mark", "tells"), [(b"", False), (bytes([PROTOCOL, LEAST]), True)])
def test_a_task_tells_an_older_coordinator_what_that_knows(mark: bytes, tells: bool) -> None:
    with coordinator(mark, []) as (address, heard):
        task = dial(address, TOKEN, hello("w"), lambda _: None, threading.Event())
        quiet, done = CommandQuiet(1, quiet=True, is_asked=False), Done(1, 2, 0.5, 3)
        task.send(quiet)
        task.send(done)
        lines = [heard.get(timeout=60) for _ in range(1 + tells)]
        assert lines == [encode_line(each) for each in ([quiet] if tells else [])] + [encode_line(done)]
        task.close()


def test_a_task_passes_over_what_a_newer_coordinator_says_beyond_it() -> None:
    said = [b'{"type":"Newest","epoch":1}\n', b'{"type":"Go","epoch":1,"step":2,"warmly":true}\n']
    heard: SimpleQueue[object] = SimpleQueue()
    with coordinator(bytes([PROTOCOL + 1, LEAST]), said) as (address, _):
        task = dial(address, TOKEN, hello("w"), heard.put, threading.Event())
        assert heard.get(timeout=60) == Go(1, 2)
        task.close()


def test_a_coordinator_that_needs_more_is_told_from_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DIAL_SECONDS", 0.0)
    with (
        coordinator(bytes([PROTOCOL + 3, PROTOCOL + 1]), []) as (address, _),
        pytest.raises(CoordinatorGone, match=f"newer release and needs protocol {PROTOCOL + 1}; this one speaks"),
    ):
        dial(address, TOKEN, hello("w"), lambda _: None, threading.Event())


@pytest.mark.parametrize("mark", [b"", bytes([PROTOCOL + 1, LEAST])])
def test_a_coordinator_works_with_tasks_of_other_releases(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, mark: bytes
) -> None:
    monkeypatch.setattr(control, "marked", lambda nonce: nonce + mark)
    job = make_job()
    heard: SimpleQueue[object] = SimpleQueue()
    task = dial(("127.0.0.1", job.port), JOB_TOKEN, hello("job-worker-0-0"), heard.put, threading.Event())
    if mark:
        task._connection.sendall(b'{"type":"Newest","epoch":1}\n')
    task.send(Failed("Traceback of the user"))
    assert isinstance(heard.get(timeout=60), Exit)
    task.close()
    assert job.wait_for_result()["error"] == "Traceback of the user"
