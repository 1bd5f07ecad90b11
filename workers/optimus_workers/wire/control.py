"""A task's end of the control connection: one thread reads, one writes, and an inbox hands messages to the main thread.

Threads rather than an event loop, because a worker's main thread is busy computing for seconds and the coordinator's
pings must be answered meanwhile.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import BinaryIO

from optimus_workers.errors import ConnectionOver, WireError
from optimus_workers.wire import secret
from optimus_workers.wire.codec import MAX_LINE_BYTES, decode_line
from optimus_workers.wire.messages import (
    Challenge,
    Exit,
    FromTask,
    Halt,
    Hello,
    MessageTypes,
    Ping,
    Pong,
    ToTask,
    Welcome,
)
from optimus_workers.wire.protocol import Peer, line_for, marked, message_from, peer_of
from optimus_workers.wire.sockets import HANDSHAKE_SECONDS, cut_after
from optimus_workers.wire.values import Address

log = logging.getLogger(__name__)

DIAL_SECONDS = 60.0
"""How long a task without a coordinator tries to reach one before it gives up."""
DIAL_PAUSE_SECONDS = 0.25
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""The coordinator pings every few seconds; silent for this long, it is as good as gone."""
FLUSH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CoordinatorLost:
    """Delivered last: the connection is over."""

    reason: str


Delivered = ToTask | CoordinatorLost


class CoordinatorGone(ConnectionOver):
    """No coordinator could be reached for a minute."""


class ControlConnection:
    """An open control connection. Messages are handed to `deliver` on the reading thread, pings excepted, which
    `pong` answers there."""

    def __init__(
        self,
        connection: socket.socket,
        stream: BinaryIO,
        deliver: Callable[[Delivered], None],
        peer: Peer,
        pong: Callable[[], Pong] = Pong,
    ) -> None:
        """`peer`: what the coordinator speaks."""
        self._peer = peer
        self._connection = connection
        self._stream = stream
        self._deliver = deliver
        self._pong = pong
        # A SimpleQueue, whose put may interrupt itself: signal handlers send messages too.
        self._outgoing: SimpleQueue[FromTask | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="control-writer", daemon=True)
        self._reader = threading.Thread(target=self._read, name="control-reader", daemon=True)
        self._writer.start()
        self._reader.start()

    def send(self, message: FromTask) -> None:
        """Queue a message. Never blocks; on a connection that is over it goes nowhere."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Send what is queued (for a few seconds at most), then hang up."""
        self._outgoing.put(None)
        self._writer.join(FLUSH_SECONDS)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _write(self) -> None:
        while (message := self._outgoing.get()) is not None:
            line = line_for(self._peer, message)
            if line is None:
                continue  # the coordinator is of a release that knows nothing of it
            try:
                self._connection.sendall(line)
            except OSError:
                return  # the reading thread notices as well, and says so

    def _read(self) -> None:
        reason = "the coordinator hung up"
        try:
            while line := self._stream.readline(MAX_LINE_BYTES + 1):
                message = message_from(self._peer, line, MessageTypes.to_task)
                if isinstance(message, Ping):
                    self.send(self._pong())
                elif message is not None:
                    self._deliver(message)
        except (OSError, ValueError, WireError) as error:
            reason = f"{type(error).__name__}: {error}"
        self._outgoing.put(None)
        self._deliver(CoordinatorLost(reason))


def dial(
    address: Address,
    token: str,
    make_hello: Callable[[str], Hello],
    deliver: Callable[[Delivered], None],
    stop: threading.Event,
    pong: Callable[[], Pong] = Pong,
) -> ControlConnection:
    """Connect to the coordinator, trying again for a minute.

    `make_hello(host)` gives the hello without its proof; `host` is this machine's address as the coordinator sees it.
    `pong()` is what a ping is answered with, asked on the connection's reading thread. Raises `CoordinatorGone` after
    a minute or once `stop` is set.
    """
    give_up_at = time.monotonic() + DIAL_SECONDS
    while True:
        try:
            return _dial_once(address, token, make_hello, deliver, pong)
        except (OSError, WireError) as error:
            if time.monotonic() > give_up_at or stop.is_set():
                raise CoordinatorGone(f"no coordinator at {address[0]}:{address[1]}: {error}") from error
        stop.wait(DIAL_PAUSE_SECONDS)


def _dial_once(
    address: Address,
    token: str,
    make_hello: Callable[[str], Hello],
    deliver: Callable[[Delivered], None],
    pong: Callable[[], Pong],
) -> ControlConnection:
    connection = socket.create_connection(address, timeout=CONNECT_SECONDS)
    try:
        if connection.getsockname() == connection.getpeername():
            # Dialling a free port of one's own machine can meet itself (TCP simultaneous open).
            raise ConnectionOver("connected to itself")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        hello = make_hello(connection.getsockname()[0])
        with cut_after(connection, HANDSHAKE_SECONDS):
            peer = _prove(connection, stream, token, hello)
        connection.settimeout(SILENCE_SECONDS)
        return ControlConnection(connection, stream, deliver, peer, pong)
    except BaseException:
        connection.close()
        raise


def _prove(connection: socket.socket, stream: BinaryIO, token: str, hello: Hello) -> Peer:
    """The handshake, both ways; what the coordinator speaks. Raises `WireError` when it does not know the token, or
    when its release and this one cannot work with each other."""
    challenge = decode_line(_first_line(stream), {"Challenge": Challenge})
    try:
        theirs = bytes.fromhex(challenge.nonce)
    except ValueError as error:
        raise WireError("the challenge is not hexadecimal") from error
    peer = peer_of(theirs)
    peer.refuse("the coordinator")
    ours, context = marked(secret.new_nonce()), f"control {hello.task}"
    proof = secret.caller_proof(token, theirs, ours, context)
    line = line_for(peer, dataclasses.replace(hello, nonce=ours.hex(), proof=proof.hex()))
    assert line is not None, "all releases know a hello"
    connection.sendall(line)
    welcome = decode_line(_first_line(stream), {"Welcome": Welcome})
    expected = secret.listener_proof(token, theirs, ours, context)
    if not secret.same(welcome.proof.encode(), expected.hex().encode()):
        raise WireError("the coordinator does not know the job token")
    return peer


def _first_line(stream: BinaryIO) -> bytes:
    line = stream.readline(MAX_LINE_BYTES + 1)
    if not line:
        raise ConnectionOver("the coordinator hung up during the handshake")
    return line


# --- the main thread's messages --------------------------------------------------------------------------------------


class Interrupted(ConnectionOver):
    """The step at hand is not wanted any more: a `Halt`, an `Exit`, or the coordinator is lost."""


class Inbox:
    """Messages from the control connection's reading thread to the main thread, in order; interruptions at once."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """`interrupt`: ends a transfer of the main thread; called on the reading thread."""
        self._interrupt = interrupt
        self._messages: SimpleQueue[Delivered] = SimpleQueue()
        self._n_interruptions = 0  # delivered and not yet taken
        self._counting = threading.Lock()

    def deliver(self, message: Delivered) -> None:
        """On the control connection's reading thread."""
        if isinstance(message, Halt | Exit | CoordinatorLost):
            with self._counting:
                self._n_interruptions += 1
            self._interrupt()
        self._messages.put(message)

    def take(self, timeout: float | None = None) -> Delivered:
        """The next message. Raises `queue.Empty` when there is none within `timeout` seconds."""
        message = self._messages.get(timeout=timeout)
        if isinstance(message, Halt | Exit | CoordinatorLost):
            with self._counting:
                self._n_interruptions -= 1
        return message

    @property
    def is_interrupted(self) -> bool:
        return self._n_interruptions > 0

    def check(self) -> None:
        """Raises `Interrupted` when the step at hand is not wanted any more."""
        if self.is_interrupted:
            raise Interrupted("the coordinator wants something else")
