"""When Python's garbage collector runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from optimus_service.process.gc_pause import LongLived


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.usefixtures("thawed")
def test_what_became_garbage_after_a_round_is_found_within_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    long_lived, cycle = LongLived(), Cycle()
    known = weakref.ref(cycle)
    long_lived.settle()
    del cycle
    now[0] = 60.0
    long_lived.settle()
    gc.collect()
    assert known() is not None, "it is not walked any more"
    now[0] = 3600.0
    long_lived.settle()
    assert known() is None
    assert gc.get_freeze_count() > 0
