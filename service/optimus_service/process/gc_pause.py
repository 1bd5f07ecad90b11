"""Pauses Python's garbage collector during a round: a side effect on the whole process, so the service does it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disables the collector inside the block; restores the earlier state afterwards, also after an error.

    A round creates hundreds of thousands of small values, none of them in a reference cycle. The collector would walk
    the whole heap several times and free nothing. Garbage of other threads is collected after the block.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
