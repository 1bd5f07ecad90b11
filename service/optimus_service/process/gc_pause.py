"""When garbage is collected, and free memory goes back to the system: for the whole process, so the service does it."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_WHOLE_SECONDS: Final = 3600.0
"""How often all of memory is looked through for garbage."""
_M_ARENA_MAX: Final = -8
"""Of `malloc.h` of glibc."""
_ARENAS: Final = 2
"""Heaps of the process. By default each thread gets its own, up to 8 for each core, and what one has free no other
uses. Threads take turns by Python's lock, so hardly two of them ask at a time."""


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


class LongLived:
    """What a round leaves in memory stays for long: the collector is told not to walk it again and again.

    With 10,000 active jobs walking it takes a third of a second, in which nobody is answered; what a start leaves takes
    a tenth. Once an hour all is walked, so that cycles which became garbage since do not stay.

    What a round has freed goes back to the system (some milliseconds): glibc keeps free pages between used ones, more
    with each request and round, for days. Other C libraries are left alone.
    """

    def __init__(self, monotonic: Callable[[], float] | None = None) -> None:
        """`monotonic`: a clock that only grows; None: `time.monotonic`."""
        self._monotonic = monotonic or time.monotonic
        self._walked_at = self._monotonic()
        library = ctypes.CDLL(None)
        self._give_back = getattr(library, "malloc_trim", None)
        if self._give_back is not None:
            library.mallopt(_M_ARENA_MAX, _ARENAS)

    def settle(self) -> None:
        """To be called at the end of a round."""
        now = self._monotonic()
        if now - self._walked_at >= _WHOLE_SECONDS:
            self._walked_at = now
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(1)
        gc.freeze()
        if self._give_back is not None:
            self._give_back(0)
