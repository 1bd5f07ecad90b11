"""Which parts of a push can leave while the backward pass is still at the others.

A chunk is ready when the gradients of all parameters in it are final (`GradientHooks`). Chunks leave in one fixed
order, the same for all workers of a job: a server has room for some chunks of each worker, and would wait for ever if
each sent its chunks in another order. The order is the reverse of that in which the model has its parameters, in which
a backward pass gets to them; what has no gradient (buffers) comes last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from optimus_workers.errors import ConnectionOver
from optimus_workers.wire.ranges import Range

Send = Callable[[Sequence[Range]], None]


def push_order(chunks: Sequence[Range], parameters: Sequence[Range], parameter_floats: int) -> list[Range]:
    """The chunks in the order in which they leave.

    `parameters`: the range of each parameter in the flat vector, in the order of the model.
    """
    members = _members(chunks, parameters)

    def key(index: int) -> tuple[bool, int, int]:
        # A chunk is as late as the parameter in it that the backward pass gets to last: the first one of the model.
        last = min(members[index], default=len(parameters))
        return chunks[index][0] >= parameter_floats, -last, -chunks[index][0]

    return [chunks[index] for index in sorted(range(len(chunks)), key=key)]


class Buckets:
    """The chunks of one connection; begun anew for each push."""

    def __init__(self, chunks: Sequence[Range], parameters: Sequence[Range], parameter_floats: int, send: Send) -> None:
        """`chunks`: in the order in which they leave. `send`: takes those that may, on the thread that found it."""
        self._chunks = chunks
        # The last one is held back: no server completes a step whose backward pass is given up.
        self._n_early = min(sum(first < parameter_floats for first, _ in chunks), max(0, len(chunks) - 1))
        self._send = send
        members = _members(chunks, parameters)
        self._n_members = [len(found) for found in members]
        self._chunks_of: list[list[int]] = [[] for _ in parameters]
        for index, found in enumerate(members):
            for parameter in found:
                self._chunks_of[parameter].append(index)
        self._n_missing = list(self._n_members)
        self._n_sent = 0
        self._changing = threading.Lock()  # a backward pass on several devices has several threads

    def begin(self) -> None:
        """Nothing is ready."""
        self._n_missing = list(self._n_members)
        self._n_sent = 0

    def gradient_ready(self, parameter: int) -> None:
        """The gradient of this parameter is final."""
        with self._changing:
            for index in self._chunks_of[parameter]:
                self._n_missing[index] -= 1
            end = self._n_sent
            while end < self._n_early and not self._n_missing[end]:
                end += 1
            self._send_to(end)

    def finish(self) -> None:
        """All the rest is ready too."""
        with self._changing:
            self._send_to(len(self._chunks))

    def _send_to(self, end: int) -> None:
        if end > self._n_sent:
            ready = self._chunks[self._n_sent : end]
            self._n_sent = end
            self._send(ready)


def _members(chunks: Sequence[Range], parameters: Sequence[Range]) -> list[list[int]]:
    """The parameters in each chunk, whole or in part; parameters without values are in none."""
    by_place = sorted(range(len(parameters)), key=lambda index: parameters[index])
    members: list[list[int]] = [[] for _ in chunks]
    begin = 0
    for index in sorted(range(len(chunks)), key=lambda index: chunks[index]):
        first, end = chunks[index]
        while begin < len(by_place) and parameters[by_place[begin]][1] <= first:
            begin += 1
        for place in by_place[begin:]:
            if parameters[place][0] >= end:
                break
            if parameters[place][1] > max(first, parameters[place][0]):
                members[index].append(place)
    return members


def contiguous(chunks: Sequence[Range]) -> list[Range]:
    """The same ranges in the same order, neighbours made one."""
    runs: list[Range] = []
    for first, end in chunks:
        if runs and runs[-1][1] == first:
            runs[-1] = runs[-1][0], end
        elif runs and runs[-1][0] == end:
            runs[-1] = first, runs[-1][1]
        else:
            runs.append((first, end))
    return runs


# --- when a gradient is final ----------------------------------------------------------------------------------------


class AccumulatedTwice(ConnectionOver):
    """A gradient changed that may have been sent already: the step is to be repeated, without overlap."""


class GradientHooks:
    """One hook on each parameter.

    A gradient is final when autograd has accumulated into it once, which is how a backward pass does it, tied weights
    included. Some code has it done more often (checkpointing with re-entrant backward passes): that is noticed in the
    first pass that is watched, and from then on nothing is reported early.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._report: Callable[[int], None] | None = None
        self._watching = False
        self._seen: set[int] = set()
        self._n_passes = 0
        self.is_reliable = True
        """No gradient was seen to be accumulated twice in one pass."""
        for place, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(place))  # type: ignore[no-untyped-call]

    def _hook(self, place: int) -> Callable[[Tensor], None]:
        def accumulated(_: Tensor) -> None:
            if self._watching:
                self._accumulated(place)

        return accumulated

    def _accumulated(self, place: int) -> None:
        if place in self._seen:
            self.is_reliable = False
            if self._report is not None:
                raise AccumulatedTwice("a gradient was accumulated twice in one backward pass")
        self._seen.add(place)
        if self._report is not None:
            self._report(place)

    @contextmanager
    def reporting(self, report: Callable[[int], None]) -> Iterator[None]:
        """In this context the last backward pass of a step is made: `report` gets the parameter's place when its
        gradient is final. The first pass is only watched."""
        self._seen.clear()
        self._report = report if self._n_passes and self.is_reliable else None
        self._watching = self.is_reliable
        try:
            yield
        finally:
            self._watching = False
            self._n_passes += 1
