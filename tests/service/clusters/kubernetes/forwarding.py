"""A TCP port on one address that leads to a unix socket: pods reach the tests' own PostgreSQL."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

_CHUNK = 65_536


class Forwarder:
    """Accepts until closed, which ends all that it forwards."""

    def __init__(self, host: str, target: Path) -> None:
        self._target = target
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="forward")]
        self._threads[0].start()

    def close(self) -> None:
        _end(self._listener)  # wakes who waits in accept
        self._threads[0].join()
        self._listener.close()
        for each in list(self._open):
            _end(each)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._forward, args=(caller,))
            self._threads.append(thread)
            thread.start()

    def _forward(self, caller: socket.socket) -> None:
        with caller, socket.socket(socket.AF_UNIX) as called:
            with suppress(OSError):
                called.connect(str(self._target))
            self._open |= {caller, called}
            back = threading.Thread(target=_copy, args=(called, caller))
            back.start()
            _copy(caller, called)
            back.join()
            self._open -= {caller, called}


def _copy(here: socket.socket, there: socket.socket) -> None:
    with suppress(OSError):
        while data := here.recv(_CHUNK):
            there.sendall(data)
    _end(there)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
