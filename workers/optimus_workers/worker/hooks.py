"""Tells while a backward pass goes on which parameters' gradients are final."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from optimus_workers.wire.errors import ConnectionOver


class AccumulatedTwice(ConnectionOver):
    """A gradient changed that may have been sent already: the step is to be repeated, without overlap."""


class GradientHooks:
    """One hook on each parameter.

    A gradient is final when autograd has accumulated into it once, which is how a backward pass does it, tied weights
    included. Some code has it done more often (checkpointing with re-entrant backward passes): that is noticed in the
    first pass that is watched, and from then on nothing is told early.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._tell: Callable[[int], None] | None = None
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
            if self._tell is not None:
                raise AccumulatedTwice("a gradient was accumulated twice in one backward pass")
        self._seen.add(place)
        if self._tell is not None:
            self._tell(place)

    @contextmanager
    def telling(self, tell: Callable[[int], None]) -> Iterator[None]:
        """The last backward pass of a step is made in this context: each gradient is told when it is final, by the
        parameter's place. The first pass is only watched."""
        self._seen.clear()
        self._tell = tell if self._n_passes and self.is_reliable else None
        self._watching = self.is_reliable
        try:
            yield
        finally:
            self._watching = False
            self._n_passes += 1
