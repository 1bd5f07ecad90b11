"""When Python's garbage collector runs: a side effect on the whole process, so the service does it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_WHOLE_SECONDS: Final = 3600.0
"""How often all of memory is looked through for garbage."""


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
    """

    def __init__(self, monotonic: Callable[[], float] | None = None) -> None:
        """`monotonic`: a clock that only grows; None: `time.monotonic`."""
        self._monotonic = monotonic or time.monotonic
        self._walked_at = self._monotonic()

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
