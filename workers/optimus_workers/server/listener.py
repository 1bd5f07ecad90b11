"""Where a server's data connections come in: a TCP port, and a name on this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from optimus_workers.server.connection import DataConnection, Service
from optimus_workers.wire.sockets import listen_locally
from optimus_workers.wire.values import Address


class DataListener:
    """Listens from the beginning; accepts once started, each connection on threads of its own."""

    def __init__(self, host: str, token: str, service: Service, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called, on the thread concerned, with what must not happen while a connection is served."""
        self._token = token
        self._service = service
        self._failed = failed
        tcp = socket.create_server((host, 0), backlog=1024)
        local = listen_locally()
        self._sockets = [tcp] if local is None else [tcp, local[0]]
        self.address: Address = tcp.getsockname()[:2]
        self.local = None if local is None else local[1]

    def start(self) -> None:
        for listener in self._sockets:
            threading.Thread(target=self._accept, args=(listener,), name="data-accept", daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more; open connections stay."""
        for listener in self._sockets:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="data-receiver", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            # What is not finite is for the workers to find, by their loss.
            with np.errstate(all="ignore"):
                DataConnection(connection, self._token, self._service).run()
        except BaseException as error:
            self._failed(error)
            raise
