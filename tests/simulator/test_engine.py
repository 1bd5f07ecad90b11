"""The agenda: order of time, then of priority, then of making."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_simulator.engine import ARRIVAL, CHANGE, ROUND, Engine


def test_events_of_one_instant_happen_by_priority_then_in_the_order_of_their_making() -> None:
    engine = Engine()
    happened: list[str] = []
    for name, priority in (("round", ROUND), ("end-1", CHANGE), ("arrival", ARRIVAL), ("end-2", CHANGE)):
        engine.at(5.0, priority, partial(happened.append, name))
    while engine.next_time is not None:
        engine.step()
    assert happened == ["arrival", "end-1", "end-2", "round"]
    assert engine.now == 5.0


@given(st.lists(st.floats(0.0, 1e6), max_size=30))
def test_time_never_goes_back(times: list[float]) -> None:
    engine, seen = Engine(), []
    for time in times:
        engine.at(time, CHANGE, lambda: seen.append(engine.now))
    while engine.next_time is not None:
        engine.step()
    assert seen == sorted(times)


def test_the_past_is_refused() -> None:
    engine = Engine()
    engine.at(2.0, CHANGE, lambda: None)
    engine.step()
    with pytest.raises(AssertionError, match="made at 2"):
        engine.at(1.0, CHANGE, lambda: None)
