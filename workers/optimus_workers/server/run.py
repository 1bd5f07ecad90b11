"""The life of a parameter server: it obeys the coordinator until it is released."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from optimus_workers.checkpoint.shards import write_shard
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import COORDINATOR_GONE, LEAVE_SECONDS, TERMINATED, WireError
from optimus_workers.server.connection import DataConnection, Service
from optimus_workers.server.range_state import collect, find_state
from optimus_workers.server.service import ShardService, make_shard
from optimus_workers.telemetry.usage import CpuPacer, ProcessMeter
from optimus_workers.wire.control import ControlConnection, CoordinatorGone, CoordinatorLost, Delivered, dial
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.messages import (
    Assume,
    Assumed,
    AssumeFailed,
    Exit,
    Halt,
    Halted,
    Hello,
    Leave,
    Pong,
    Release,
    Save,
    Saved,
    SaveFailed,
    SnapshotTaken,
)
from optimus_workers.wire.sockets import SHORTAGES, listen_locally, share_of_rate
from optimus_workers.wire.values import Address, TaskRole

log = logging.getLogger(__name__)


async def run_server(environment: TaskEnvironment) -> int:
    """Serve until the coordinator releases this server; the exit code."""
    return await _Server(environment).run()


class _Server:
    def __init__(self, environment: TaskEnvironment) -> None:
        self._environment = environment
        self._checkpoints = environment.checkpoints
        self._origin = environment.origin
        self._service = ShardService(CpuPacer(environment.cpu_limit))
        self._loop = asyncio.get_running_loop()
        self._meter = ProcessMeter()
        self._inbox: asyncio.Queue[Delivered] = asyncio.Queue()
        self._listener: DataListener | None = None
        self._control: ControlConnection | None = None
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        self._stop_dialling = threading.Event()
        self._terminated = False
        self._jobs: set[asyncio.Task[None]] = set()
        # One at a time: two checkpoints at once would only slow each other down.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    async def run(self) -> int:
        self._loop.add_signal_handler(signal.SIGTERM, self._terminate)
        life = asyncio.create_task(self._live())
        life.add_done_callback(self._life_ended)
        code = await self._exit_code
        self._stop_dialling.set()
        if self._control is not None:
            await asyncio.to_thread(self._control.close)
        return TERMINATED if self._terminated else code

    def _life_ended(self, life: asyncio.Task[int]) -> None:
        if life.cancelled() or self._exit_code.done():
            return
        error = life.exception()
        if error is not None:
            self._exit_code.set_exception(error)
        else:
            self._exit_code.set_result(life.result())

    def _terminate(self) -> None:
        """SIGTERM: ask the coordinator for release; exit in time either way."""
        self._terminated = True
        if self._control is None:
            self._end(TERMINATED)
            return
        self._control.send(Leave())
        self._loop.call_later(LEAVE_SECONDS, self._end, TERMINATED)

    def _end(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)

    async def _live(self) -> int:
        while True:
            try:
                self._control = await asyncio.to_thread(self._dial)
            except CoordinatorGone as error:
                log.error("%s", error)  # noqa: TRY400 - its text says all
                return COORDINATOR_GONE
            if self._terminated:
                self._control.send(Leave())
            while not isinstance(message := await self._inbox.get(), CoordinatorLost):
                if isinstance(message, Exit):
                    log.info("let go: %s", message.reason)
                    return 0
                self._obey(message)
            log.warning("the coordinator is lost: %s", message.reason)
            control, self._control = self._control, None
            control.close()

    def _dial(self) -> ControlConnection:
        return dial(
            self._environment.coordinator_address,
            self._environment.job_token,
            self._hello,
            self._deliver,
            self._stop_dialling,
            self._pong,
        )

    def _pong(self) -> Pong:
        used = self._meter.read()
        return Pong(used.cpu_cores, used.memory_bytes)

    def _deliver(self, message: Delivered) -> None:
        with suppress(RuntimeError):  # the loop may be closed already
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, message)

    def _hello(self, host: str) -> Hello:
        environment = self._environment
        if self._listener is None:
            self._listener = DataListener(host, environment.job_token, self._service, self._data_plane_failed)
            self._listener.start()
        return Hello(
            environment.task_name,
            TaskRole.SERVER,
            environment.rank,
            "",
            "",
            self._listener.address,
            local=self._listener.local,
            epoch=self._service.epoch,
        )

    def _data_plane_failed(self, error: BaseException) -> None:
        """On a connection's thread: a broken invariant ends the process; its replacement starts from what is safe."""
        with suppress(RuntimeError):  # the loop may be closed already
            self._loop.call_soon_threadsafe(self._crash, error)

    def _crash(self, error: BaseException) -> None:
        if not self._exit_code.done():
            self._exit_code.set_exception(error)

    def _obey(self, message: Delivered) -> None:
        match message:
            case Halt():
                self._send(Halted(message.epoch, self._service.halt(message.epoch)))
            case Assume():
                self._start(self._assume(message))
            case Release():
                self._service.release(message.epoch)
            case Save():
                self._save(message)
            case _:
                log.warning("not for a server: %s", type(message).__name__)

    def _send(self, message: Halted | Assumed | AssumeFailed | SnapshotTaken | Saved | SaveFailed) -> None:
        if self._control is not None:
            self._control.send(message)

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _assume(self, assume: Assume) -> None:
        environment = self._environment
        try:
            state = await asyncio.to_thread(
                collect,
                assume,
                environment.task_name,
                self._service.states(),
                environment.job_token,
                self._checkpoints,
                self._origin,
            )
        except (OSError, WireError) as error:
            self._send(AssumeFailed(assume.epoch, str(error)))
            return
        if assume.epoch == self._service.epoch:  # otherwise another attempt has begun meanwhile
            self._service.candidate = make_shard(assume, state)
            self._service.connection_rate = share_of_rate(
                environment.network_bytes_per_second, assume.n_workers, assume.n_servers
            )
            self._send(Assumed(assume.epoch))

    def _save(self, save: Save) -> None:
        shard = self._service.shard
        try:
            if shard is None:
                raise WireError("this server serves nothing")
            state = find_state(self._service.states(), save.version, shard.first, shard.end)
        except WireError as error:
            self._send(SaveFailed(save.epoch, save.version, str(error)))
            return
        sections = [section.copy() for section in state.sections]
        self._send(SnapshotTaken(save.epoch, save.version))
        self._start(self._write(save, shard.first, sections))

    async def _write(self, save: Save, first: int, sections: list[Floats]) -> None:
        try:
            file = await self._loop.run_in_executor(
                self._writer, write_shard, self._checkpoints, save.epoch, save.version, first, sections
            )
        except OSError as error:
            self._send(SaveFailed(save.epoch, save.version, str(error)))
        else:
            self._send(Saved(save.epoch, save.version, file))


# --- Where a server's data connections come in: a TCP port, and a name on this machine -------------------------------

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
