"""torch's process group of one membership epoch: gloo for CPUs, NCCL where every member has a GPU of its own."""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Promise
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from optimus_workers.allreduce import gloo_sockets
from optimus_workers.allreduce.rendezvous import Rendezvous, RendezvousStore
from optimus_workers.errors import ConnectionOver
from optimus_workers.wire.values import Address

# --- the end of operations that gloo does not end, though all connections of the group are hung up -------------------
# gloo reports a connection's error to the operations that wait, but not to two kinds: those of a message that is half
# received, and those of a message still to be sent. Such an operation waits for ever: for instance one that passes a
# member's state on to a member that is stopped (gloo, `transport/tcp/pair.cc`, `signalException`). So nothing here
# waits for gloo itself, but for a future beside it, which can be given an outcome from outside.

log = logging.getLogger(__name__)

Future = torch.futures.Future[Any]


class AbortableOperations:
    """The operations of one group that are going on. Used by several threads."""

    def __init__(self, devices: Sequence[torch.device | str | int] = ()) -> None:
        """`devices`: GPUs whose streams the operations write on."""
        self._devices = list(devices)
        self._changed = threading.Condition()  # guards all below; notified when an operation ends
        self._waiting: dict[int, Future] = {}
        self._patience: float | None = None
        self._watches: list[threading.Thread] = []
        self.is_stuck = False
        """Whether an operation was abandoned and goes on: its group must not be taken apart."""

    def guard(self, operation: Future) -> Future:
        """A future with the outcome of `operation`, or with an error if that does not come in time."""
        outcome: Future = torch.futures.Future(devices=self._devices)
        with self._changed:
            self._waiting[id(outcome)] = outcome
            if self._patience is not None:  # begun after the end: its connections may not have noticed yet
                self._watch(self._patience)
        operation.add_done_callback(lambda done: self._end(outcome, _result(done)))
        return outcome.then(_unpacked)

    def abort(self, after_seconds: float) -> None:
        """Abandon operations that do not end by themselves within this time. Returns at once; once for each group."""
        with self._changed:
            self._patience = after_seconds
            self._watch(after_seconds)

    def close(self) -> None:
        """Wait until every operation has ended or is abandoned, after `abort`. Nothing may be begun meanwhile."""
        for watch in self._watches:
            watch.join()

    def _watch(self, seconds: float) -> None:
        watch = threading.Thread(target=self._give_up, args=(seconds,), name="group-abort", daemon=True)
        self._watches.append(watch)
        watch.start()

    def _give_up(self, after_seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, after_seconds)
            left = list(self._waiting.values())
            self.is_stuck |= bool(left)
        if left:
            log.warning("%d operations of a group that is over do not end: they are abandoned", len(left))
        for outcome in left:
            self._end(outcome, ConnectionOver("the process group is over"))

    def _end(self, outcome: Future, result: object) -> None:
        with self._changed:
            if self._waiting.pop(id(outcome), None) is None:
                return
            self._changed.notify_all()
        outcome.set_result(result)


def _result(done: Future) -> object:
    """The value, or the error in its place."""
    try:
        return done.value()
    except RuntimeError as error:
        return error


def _unpacked(outcome: Future) -> Any:
    result = outcome.value()
    if isinstance(result, RuntimeError | ConnectionOver):
        raise result
    return result


# --- the group -------------------------------------------------------------------------------------------------------

CONNECT_SECONDS = 10.0
"""For the members to connect to each other, once they have published their addresses."""
OPERATION_SECONDS = 24 * 3600.0
"""No limit in practice: a slow member is no failure. Those that died or hang are found by the coordinator, which ends
the group."""
ABORT_SECONDS = 2.0
"""For operations to end once their group is over."""
CHECK_SECONDS = 2.0
"""How often the connections are looked at."""
BACKEND = "optimus"


class ProcessGroup:
    """One at a time. `abort` may be called by another thread at any time, the rest by the main thread."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        epoch: int,
        rank: int,
        size: int,
        host: str,
        device: torch.device,
        on_unreachable: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`host`: this machine's address, where the others reach it; nothing listens on any other. `on_unreachable`:
        called with the host of a member that runs but cannot be reached, before what waits for it fails."""
        self.rank = rank
        self.size = size
        self._rendezvous = rendezvous
        self._epoch = epoch
        self._host = host
        self._device = device
        self._listens_at: Address | None = None
        self._is_nccl = False
        self._on_unreachable = on_unreachable
        self._aborted = False
        self._aborting = threading.Lock()
        self._operations = AbortableOperations([device] if device.type == "cuda" else [])
        self._backend: Any = None
        self._over = threading.Event()
        self._changed = threading.Event()  # set once the group is connected, or is over

    def open(self, bytes_per_second: float | None = None) -> None:
        """Connect to the other members. Raises `ConnectionOver` when one of them does not come."""
        self._is_nccl = self._device.type == "cuda" and self._each_has_a_gpu()
        dist.Backend.register_backend(BACKEND, self._make_backend, extended_api=True, devices=["cpu", "cuda"])
        try:
            dist.init_process_group(
                BACKEND,
                store=RendezvousStore(self._rendezvous, self._epoch),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=CONNECT_SECONDS),
            )
        except (RuntimeError, ConnectionOver) as error:
            self._find_unreachable()
            raise ConnectionOver(f"the process group did not come about: {error}") from error
        if self._aborted:
            raise ConnectionOver("the membership is over")
        threading.Thread(target=self._watch, name="group-watch", daemon=True).start()
        if bytes_per_second is not None and self._listens_at is not None:
            gloo_sockets.pace(self._listens_at, self._others(), bytes_per_second / 2)  # each member has two neighbours

    def _each_has_a_gpu(self) -> bool:
        """NCCL refuses two members on one GPU; gloo then goes by way of the CPU."""
        identity = str(torch.cuda.get_device_properties(self._device).uuid).encode()
        self._rendezvous.publish(self._epoch, f"gpu/{self.rank}", identity)
        seen = [self._rendezvous.wait(self._epoch, f"gpu/{rank}") for rank in range(self.size)]
        return dist.is_nccl_available() and len(set(seen)) == self.size

    def _make_backend(self, options: Any, _: Any) -> Any:
        """Called by torch."""
        if self._is_nccl:
            limits = dist.ProcessGroupNCCL.Options()
            limits._timeout = timedelta(seconds=OPERATION_SECONDS)
            return dist.ProcessGroupNCCL(options.store, options.group_rank, options.group_size, limits)
        before = gloo_sockets.listening()
        settings = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        settings._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host, lazy_init=False)]
        settings._timeout = timedelta(seconds=CONNECT_SECONDS)
        self._listens_at = (gloo_sockets.listening() - before).pop()
        host, port = self._listens_at
        self._rendezvous.publish(self._epoch, f"listens/{self.rank}", f"{host} {port}".encode())
        backend = self._connected(
            lambda: dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, settings)
        )
        backend._set_default_timeout(timedelta(seconds=OPERATION_SECONDS))
        self._backend = backend
        return backend

    def _connected(self, connect: Callable[[], Any]) -> Any:
        """What `connect` gives. Raises `ConnectionOver` when it takes too long, or the membership is over.

        On a thread of its own, which is then abandoned: gloo tries for minutes to reach a member that is out of reach.
        """
        made: Promise[Any] = Promise()
        threading.Thread(target=_fulfil, args=(made, connect), name="gloo-connect", daemon=True).start()
        made.add_done_callback(lambda _: self._changed.set())
        give_up_at = math.inf
        while not (made.done() or self._aborted):
            if give_up_at == math.inf and len(self._others()) == self.size - 1:  # all have published their addresses
                give_up_at = time.monotonic() + CONNECT_SECONDS
            if time.monotonic() >= give_up_at:
                raise ConnectionOver("a member does not connect")
            self._changed.wait(CHECK_SECONDS)
        if not made.done():
            raise ConnectionOver("the membership is over")
        return made.result()

    def _others(self) -> set[Address]:
        """Where the other members listen, as far as they have published it."""
        published = (value.decode().rpartition(" ") for value in self._rendezvous.published(self._epoch, "listens/"))
        return {(host, int(port)) for host, _, port in published} - {self._listens_at or ("", 0)}

    def _find_unreachable(self) -> None:
        """After a failed `open`: report a member that published its address and is not connected."""
        if self._listens_at is not None and not self._aborted:
            hosts = {host for host, _ in self._others()} - {self._host}
            missing = hosts - gloo_sockets.connected(self._listens_at, self._others())
            if missing:
                self._on_unreachable(min(missing))

    def _watch(self) -> None:
        """End a group whose members wait for what the network has lost: TCP reports that after 15 minutes only."""
        while not self._over.wait(CHECK_SECONDS):
            hosts = gloo_sockets.cut_off(self._listens_at, self._others()) if self._listens_at is not None else []
            if hosts:
                self._on_unreachable(min(hosts))
                self.abort()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Give every member the root's values. Raises `ConnectionOver`."""
        self.run(lambda: self._wait_for(dist.broadcast(tensor, root, async_op=True)))

    def sum(self, tensor: Tensor) -> None:
        """Replace the values by their sum over all members. Raises `ConnectionOver`."""
        self.run(lambda: self._wait_for(dist.all_reduce(tensor, async_op=True)))

    def guard(self, operation: Future) -> Future:
        """The same outcome, which `abort` brings about if nothing else does."""
        return operation if self._is_nccl else self._operations.guard(operation)  # NCCL ends what it is told to end

    def _wait_for(self, work: Any) -> None:
        if not self._is_nccl:
            self._operations.guard(work.get_future()).wait()
        work.wait()

    def run(self, operation: Callable[[], object]) -> None:
        """Do something that all members take part in. Raises `ConnectionOver`."""
        try:
            operation()
        except RuntimeError as error:
            raise ConnectionOver(f"the process group is broken: {error}") from error

    @property
    def is_broken(self) -> bool:
        """Whether a member is gone: that is then the cause of what failed meanwhile."""
        if self._aborted:
            return True
        return self._listens_at is not None and gloo_sockets.count(self._listens_at, self._others()) < self.size - 1

    def abort(self) -> None:
        """End what is going on, now and later. Safe from other threads."""
        with self._aborting:
            if self._aborted:
                return
            self._aborted = True
            self._over.set()
            self._changed.set()
            if self._is_nccl:
                with suppress(RuntimeError, AttributeError):  # torn down, or not set up yet
                    dist.group.WORLD.abort()  # type: ignore[union-attr]
            elif self._listens_at is not None:
                gloo_sockets.hang_up(self._listens_at, self._others())
            self._operations.abort(ABORT_SECONDS)
        self._rendezvous.close(self._epoch)

    def close(self) -> None:
        """Give everything back; the next group may be opened."""
        self.abort()
        self._operations.close()
        if self._operations.is_stuck:
            # Taking it apart would wait for the operation that does not end.
            for kept in (self._backend, dist.group.WORLD):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


def _fulfil(made: Promise[Any], make: Callable[[], Any]) -> None:
    """Run `make` as an executor would, which however would wait for it when the process ends."""
    try:
        made.set_result(make())
    except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
        made.set_exception(error)
