"""Python's garbage collector is not asked to look through a large cluster in the middle of a round."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """For a shell to plan within: a round makes hundreds of thousands of small values at once, none of them in a cycle.

    The collector would walk all that there is several times to find nothing. What else the process does meanwhile is
    collected afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
