"""Where a server's data connections come in: a TCP port, and a name on this machine."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from optimus_workers.server.connection import DataConnection, Service
from optimus_workers.wire.sockets import SHORTAGES, listen_locally
from optimus_workers.wire.values import Address

log = logging.getLogger(__name__)

MAX_HANDSHAKES = 1024
"""Connections that have not shown yet that they know the job token: as many as a job has workers, which may all come
at once. One more, and the one that has taken longest is cut off."""
SHORTAGE_SECONDS = 0.2
"""Between two attempts to accept while the process has no descriptors, memory or threads left."""


class DataListener:
    """Listens from the beginning; accepts once started, each connection on threads of its own.

    Only `close` ends the accepting: a shortage of descriptors, memory or threads is waited out. Connections in their
    handshake are given up for it, for those that train have shown the token and these have not.
    """

    def __init__(
        self,
        host: str,
        token: str,
        service: Service,
        failed: Callable[[BaseException], None],
        max_handshakes: int = MAX_HANDSHAKES,
    ) -> None:
        """`failed` is called, on the thread concerned, with what must not happen while a connection is served."""
        self._token = token
        self._service = service
        self._failed = failed
        self._max_handshakes = max_handshakes
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._handshakes: dict[DataConnection, None] = {}  # the oldest first; guarded by _lock
        tcp = socket.create_server((host, 0), backlog=1024)
        local = listen_locally()
        self._sockets = [tcp] if local is None else [tcp, local[0]]
        self.address: Address = tcp.getsockname()[:2]
        self.local = None if local is None else local[1]

    def start(self) -> None:
        for listener in self._sockets:
            threading.Thread(target=self._accept, args=(listener,), name="data-accept", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        self._closed.set()
        for listener in self._sockets:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        is_short = False
        while not self._closed.is_set():
            try:
                connection, _ = listener.accept()
                self._begin(connection)
                is_short = False
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                if self._closed.is_set():
                    return
                if isinstance(error, OSError) and error.errno not in SHORTAGES:
                    # The caller has hung up already, or the network did: the next one may come.
                    log.info("a connection was not accepted: %s", error)
                    self._closed.wait(SHORTAGE_SECONDS)
                    continue
                if not is_short:
                    log.warning("no connection can be accepted now, trying again: %s", error)
                is_short = True
                self._cut_off(keep=0)
                self._closed.wait(SHORTAGE_SECONDS)

    def _begin(self, connection: socket.socket) -> None:
        """Serve a connection on a thread. Raises `RuntimeError` when there can be no more of them."""
        served = DataConnection(connection, self._token, self._service, self._admitted)
        with self._lock:
            self._handshakes[served] = None
        self._cut_off(keep=self._max_handshakes)
        try:
            threading.Thread(target=self._serve, args=(served,), name="data-receiver", daemon=True).start()
        except RuntimeError:
            self._admitted(served)
            connection.close()
            raise

    def _admitted(self, connection: DataConnection) -> None:
        """The handshake of this connection is over, with success or without."""
        with self._lock:
            self._handshakes.pop(connection, None)

    def _cut_off(self, keep: int) -> None:
        """Hang up on those that have been longest in their handshake, except `keep` of them."""
        with self._lock:
            oldest = list(self._handshakes)[: max(0, len(self._handshakes) - keep)]
            for connection in oldest:
                del self._handshakes[connection]
        for connection in oldest:
            connection.abort()

    def _serve(self, connection: DataConnection) -> None:
        try:
            # What is not finite is for the workers to find, by their loss.
            with np.errstate(all="ignore"):
                connection.run()
        except BaseException as error:
            self._failed(error)
            raise
