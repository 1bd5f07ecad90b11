from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_workers.telemetry.usage import MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS, PERIOD_SECONDS, CpuPacer


class Machine:
    """Virtual wall and CPU time; sleeping is exact unless `oversleep` is set."""

    def __init__(self, oversleep: float = 0.0) -> None:
        self.now = 0.0
        self.cpu = 0.0
        self.oversleep = oversleep

    def pacer(self, limit: float | None) -> CpuPacer:
        return CpuPacer(limit, clock=lambda: self.now, cpu_clock=lambda: self.cpu, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.oversleep

    def compute(self, seconds: float, *, stretched: float = 1.0) -> None:
        """Use CPU; on a crowded machine it takes `stretched` times as long."""
        self.cpu += seconds
        self.now += seconds * stretched


@settings(deadline=None)
@given(
    limit=st.floats(0.05, 1.0),
    pieces=st.lists(st.tuples(st.floats(1e-4, 0.05), st.floats(0, 0.5)), min_size=1, max_size=60),
    oversleep=st.floats(0, 0.01),
)
def test_stays_under_the_limit(limit: float, pieces: list[tuple[float, float]], oversleep: float) -> None:
    """Over any stretch of time the CPU used is at most the limit plus one period's quota and one debt not yet paid."""
    machine = Machine(oversleep)
    pacer = machine.pacer(limit)
    history = [(machine.now, machine.cpu)]
    for seconds, idle in pieces:
        machine.now += idle
        machine.compute(seconds)
        pacer.pace()
        history.append((machine.now, machine.cpu))
    allowance = limit * (PERIOD_SECONDS + oversleep + MIN_PAUSE_SECONDS) + 0.05
    for index, (start, used_before) in enumerate(history):
        for end, used_after in history[index:]:
            assert used_after - used_before <= limit * (end - start) + allowance + 1e-9


def test_uses_what_the_limit_allows() -> None:
    machine = Machine()
    pacer = machine.pacer(0.25)
    for _ in range(400):
        machine.compute(0.005)
        pacer.pace()
    assert machine.cpu / machine.now == pytest.approx(0.25, rel=0.02)


def test_sleeping_too_long_is_made_up_for() -> None:
    machine = Machine(oversleep=0.004)
    pacer = machine.pacer(0.25)
    for _ in range(400):
        machine.compute(0.005)
        pacer.pace()
    assert machine.cpu / machine.now == pytest.approx(0.25, rel=0.02)


def test_a_crowded_machine_needs_no_pause() -> None:
    machine = Machine()
    pacer = machine.pacer(0.25)
    for _ in range(50):
        machine.compute(0.005, stretched=4.0)
        assert pacer.pace() == 0.0


def test_idle_time_counts_for_one_period_only() -> None:
    machine = Machine()
    pacer = machine.pacer(0.5)
    machine.now += 60.0
    machine.compute(0.2)
    # Earned while idle: 0.05 (one period at half a core), while busy: 0.1; owed: 0.05 at half a core.
    assert pacer.pace() == pytest.approx(0.1)


def test_debt_is_bounded() -> None:
    machine = Machine()
    pacer = machine.pacer(0.1)
    machine.compute(100.0)
    assert pacer.pace() == MAX_PAUSE_SECONDS
    machine.compute(0.002)
    assert pacer.pace() == pytest.approx(0.018)  # the rest is forgiven


def test_small_debts_add_up() -> None:
    machine = Machine()
    pacer = machine.pacer(0.5)
    pauses = []
    for _ in range(20):
        machine.compute(0.002)
        pauses.append(pacer.pace())
    paid = [pause for pause in pauses if pause]
    assert min(paid) >= MIN_PAUSE_SECONDS
    assert len(paid) < len(pauses)


def test_no_limit_no_pause() -> None:
    machine = Machine()
    pacer = machine.pacer(None)
    machine.compute(5.0)
    assert pacer.pace() == 0.0
    assert machine.now == 5.0


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_refuses_a_limit_that_allows_nothing(limit: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        CpuPacer(limit)
