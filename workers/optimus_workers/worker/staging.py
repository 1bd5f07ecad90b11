"""The flat vector where the model computes, and its way from and to the flat vector that travels.

On a CPU both are the same memory. A GPU has vectors of its own; those of the host are pinned, and copies go chunk by
chunk on two side streams, one each way, while the GPU computes:

    gradients   a chunk is final ──▶ event ──▶ copied down ──▶ event ──▶ the sending thread waits for it, then sends
    parameters  a chunk arrives  ──▶ copied up, once what computes with the old ones is through ──▶ the next step waits
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from optimus_workers.wire.ranges import Range

log = logging.getLogger(__name__)

Wait = Callable[[], None]


class Staging(Protocol):
    """`values` and `gradients` are what the model's parameters and their gradients are views of."""

    values: Tensor
    gradients: Tensor
    transferred: tuple[Tensor, Tensor]
    """Values and pushes as they are sent and received."""
    can_receive_early: bool
    """Parameters may be received while the model still computes with the old ones."""

    def ready(self, chunks: Sequence[Range]) -> Wait | None:
        """These chunks of the gradients are final. What to call before they are read from the transferred vector."""

    def received(self, part: Range) -> None:
        """New parameters are in the transferred vector."""

    def begin(self) -> None:
        """The model is going to compute with the parameters that were received."""

    def end(self) -> None:
        """All that computes with them has been queued."""


class DirectStaging:
    """The model computes in the vector that travels."""

    can_receive_early = False

    def __init__(self, values: Tensor, push: Tensor) -> None:
        self.values, self.gradients = self.transferred = values, push

    def ready(self, chunks: Sequence[Range]) -> None:
        """They are there."""

    def received(self, part: Range) -> None:
        """They are there."""

    def begin(self) -> None:
        """Nothing to wait for."""

    def end(self) -> None:
        """Nothing to note."""


class Streams(Protocol):
    """Copies in the background, in order each way. An event says that what was queued before it is through."""

    def mark(self) -> Any:
        """An event of what has been queued so far for computing, by this thread."""

    def copy_down(self, targets: Sequence[Tensor], sources: Sequence[Tensor], after: Any) -> Wait:
        """Copy from the device; what to call to wait for it."""

    def copy_up(self, target: Tensor, source: Tensor, after: Any) -> None:
        """Copy to the device."""

    def await_copies_up(self) -> None:
        """What is queued for computing from now on comes after the copies to the device."""


class DeviceStaging:
    """The model computes in vectors of its own on `device`."""

    can_receive_early = True

    def __init__(self, values: Tensor, push: Tensor, device: torch.device, streams: Streams) -> None:
        self._host_values, self._host_push = self.transferred = values, push
        self.values = values.to(device, copy=True)
        self.gradients = torch.zeros(len(push), device=device)
        self._streams = streams
        self._changing = threading.Lock()
        self._computing = False
        self._computed: Any = None
        self._arrived: list[Range] = []

    def ready(self, chunks: Sequence[Range]) -> Wait:
        sources = [self.gradients[first:end] for first, end in chunks]
        targets = [self._host_push[first:end] for first, end in chunks]
        return self._streams.copy_down(targets, sources, self._streams.mark())

    def received(self, part: Range) -> None:
        with self._changing:
            if self._computing:
                self._arrived.append(part)
            else:
                self._copy_up(part)

    def begin(self) -> None:
        with self._changing:
            self._computing = True
        self._streams.await_copies_up()

    def end(self) -> None:
        with self._changing:
            self._computing = False
            self._computed = self._streams.mark()
            for part in self._arrived:
                self._copy_up(part)
            self._arrived.clear()

    def _copy_up(self, part: Range) -> None:
        source = self._host_values[part[0] : part[1]]
        self._streams.copy_up(self.values[part[0] : part[1]], source, self._computed)


class CudaStreams:
    """Two side streams of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._up: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copy_down(self, targets: Sequence[Tensor], sources: Sequence[Tensor], after: torch.cuda.Event) -> Wait:
        # Blocking: the thread that waits sleeps, and leaves its core to others.
        done: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._down):
            self._down.wait_event(after)
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)
            done.record(self._down)
        return done.synchronize

    def copy_up(self, target: Tensor, source: Tensor, after: torch.cuda.Event | None) -> None:
        with torch.cuda.stream(self._up):
            if after is not None:
                self._up.wait_event(after)
            target.copy_(source, non_blocking=True)

    def await_copies_up(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._up)


def stage(device: torch.device, values: Tensor, push: Tensor, *, servers: bool = True) -> Staging:
    """What suits the device. Without `servers` on CPUs, vectors travel from GPU to GPU and are there only."""
    if device.type == "cpu":
        return DirectStaging(values, push)
    torch.cuda.set_device(device)
    if not servers:
        return DirectStaging(values.to(device), push.to(device))
    for vector in (values, push):
        pin(vector)
    return DeviceStaging(values, push, device, CudaStreams(device))


_pinned: list[Tensor] = []
"""Kept for as long as the process lives: where memory was pinned and given back, what is mapped there next would be
taken for pinned, and a GPU would read and write the pages of before."""


def pin(vector: Tensor) -> None:
    """Lock the memory, so that a GPU reads and writes it by itself. It stays so for as long as the process lives.

    The memory is not torch's own (it is mapped, maybe shared with a server), so torch's `pin_memory`, which copies,
    will not do. Where the system refuses, copies take longer and are as right.
    """
    if not len(vector):
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(vector.data_ptr(), vector.nbytes, 0)
    if int(error) == 0:
        _pinned.append(vector)
        return
    log.warning("%d bytes could not be pinned (CUDA error %d): copies will be slower", vector.nbytes, int(error))
    # CUDA keeps the error for whoever launches the next kernel: launch one, which tells it and clears it.
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")
