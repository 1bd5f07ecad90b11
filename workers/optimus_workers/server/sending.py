"""What one data connection of a server sends.

Small frames, such as those about shared memory, are handed to the system by whoever has them: no other thread has to be
woken. Chunks, and what there is no room for, are sent by a thread that blocks, so that a slow receiver holds up nobody
but itself.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from itertools import chain
from queue import Empty, SimpleQueue

from optimus_workers.wire.data import send_buffers, unsent
from optimus_workers.wire.frames import Header

FRAMES_PER_CALL = 8
"""Frames handed to the system in one call, if so many are waiting."""
SMALL_BYTES = 4096
"""Payload that may be sent at once. When chunks were as well, the threads of a server that has all ranges were busy
copying where they should receive, and steps took longer."""

Buffers = list[memoryview]


def frame_buffers(header: Header, payload: memoryview | bytes = b"") -> Buffers:
    """What is sent of a frame."""
    head = memoryview(header.encode())
    return [head, memoryview(payload)] if payload else [head]


class Sending:
    """Nothing is sent before `start`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._ordering = threading.Lock()
        self._n_queued = 1  # frames that are to be sent before a new one; at first, the handshake
        self._queue: SimpleQueue[Buffers | None] = SimpleQueue()

    def start(self) -> None:
        """The handshake is over."""
        threading.Thread(target=self._run, name="data-sender", daemon=True).start()

    def stop(self) -> None:
        """The connection is over."""
        self._queue.put(None)

    def send(self, header: Header, payload: memoryview | bytes = b"") -> None:
        """Send a frame, after those before; its payload must stay as it is until it has been sent."""
        self.send_buffers(frame_buffers(header, payload))

    def send_buffers(self, buffers: Buffers) -> None:
        """The same with `frame_buffers`, which several connections may be given."""
        with self._ordering:
            if not self._n_queued and len(buffers[-1]) <= SMALL_BYTES:
                buffers = self._send_now(buffers)
            if buffers:
                self._n_queued += 1
                self._queue.put(buffers)

    def _send_now(self, buffers: Buffers) -> Buffers:
        """What is left when the system has taken what it has room for."""
        try:
            return unsent(buffers, self._socket.sendmsg(buffers, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return buffers
        except OSError:
            self._abort()
            return []

    def _abort(self) -> None:
        """The receiving thread notices, and says so."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        self._sent(1)
        try:
            while frames := self._next_frames():
                send_buffers(self._socket, list(chain.from_iterable(frames)))
                self._sent(len(frames))
        except OSError:
            self._abort()

    def _sent(self, n_frames: int) -> None:
        with self._ordering:
            self._n_queued -= n_frames

    def _next_frames(self) -> list[Buffers]:
        """Wait for frames to send; none: the connection is over."""
        frames: list[Buffers] = []
        frame = self._queue.get()
        with suppress(Empty):
            while frame is not None:
                frames.append(frame)
                if len(frames) == FRAMES_PER_CALL:
                    break
                frame = self._queue.get_nowait()
        if frame is None and frames:
            self._queue.put(None)
        return frames
