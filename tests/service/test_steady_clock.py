"""The service's clock when the machine's clock is set, and over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from optimus_service.process.steady_clock import FOLLOW_RATE, ClockFile, SteadyClock

HOUR = 3600.0


class Machine:
    """Its clock may be set; its time since boot only grows."""

    def __init__(self) -> None:
        self.wall, self.since_boot = 1_800_000_000.0, 500.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.since_boot += seconds

    def clock(self, file: ClockFile | None = None) -> SteadyClock:
        return SteadyClock(file, lambda: self.wall, lambda: self.since_boot)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_is_the_machines_clock_while_nobody_sets_that(machine: Machine) -> None:
    clock = machine.clock()
    for _ in range(1000):
        machine.passes(7.3)
        assert clock() == pytest.approx(machine.wall)


@pytest.mark.parametrize("step", [2 * HOUR, 60.0, -HOUR])
def test_a_step_moves_no_moment(machine: Machine, step: float) -> None:
    clock = machine.clock()
    before = clock()
    machine.wall += step
    assert clock() == before
    machine.passes(30.0)
    assert 30.0 * (1 - FOLLOW_RATE) <= clock() - before <= 30.0 * (1 + FOLLOW_RATE)


@pytest.mark.parametrize("step", [2 * HOUR, -HOUR])
def test_a_step_is_made_up_for_slowly(machine: Machine, step: float) -> None:
    clock = machine.clock()
    machine.wall += step
    for _ in range(int(abs(step) / FOLLOW_RATE / 60.0) + 1):
        machine.passes(60.0)
        clock()
    assert clock() == pytest.approx(machine.wall)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-1e6, 1e6)), max_size=30))
def test_it_never_goes_back_nor_runs_away(turns: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock()
    for passed, step in turns:
        machine.passes(passed)
        machine.wall += step
        now = clock()
        assert passed * (1 - FOLLOW_RATE) - 1e-3 <= now - before <= passed * (1 + FOLLOW_RATE) + 1e-3
        before = now


@pytest.mark.parametrize("step", [2 * HOUR, -HOUR])
def test_a_restart_after_a_step_goes_on_with_what_was_stored(machine: Machine, step: float, tmp_path: Path) -> None:
    file = ClockFile(tmp_path / "clock.json", "this-boot")
    clock = machine.clock(file)
    machine.wall += step
    machine.passes(HOUR)
    before = clock()
    machine.passes(10.0)  # without a service
    assert machine.clock(file)() - before == pytest.approx(10.0, abs=2.0)


def test_after_another_boot_the_machine_is_believed(machine: Machine, tmp_path: Path) -> None:
    machine.clock(ClockFile(tmp_path / "clock.json", "this-boot"))
    machine.wall += 2 * HOUR
    machine.since_boot = 20.0
    assert machine.clock(ClockFile(tmp_path / "clock.json", "the-next-boot"))() == machine.wall


def test_a_machine_that_did_not_know_the_time_is_believed_once_it_does(machine: Machine) -> None:
    now, machine.wall = machine.wall, 20.0
    clock = machine.clock()
    machine.wall = now
    assert clock() == now


def test_a_file_that_cannot_be_read_or_written_stops_nothing(machine: Machine, tmp_path: Path) -> None:
    for text in ("{", "[]", '{"boot_id": "this-boot", "booted_at": NaN}', '{"boot_id": "this-boot"}'):
        (tmp_path / "clock.json").write_text(text)
        assert machine.clock(ClockFile(tmp_path / "clock.json", "this-boot"))() == machine.wall
    assert machine.clock(ClockFile(tmp_path / "no" / "clock.json", "this-boot"))() == machine.wall


def test_a_step_is_said_once(machine: Machine) -> None:
    clock = machine.clock()
    machine.wall += HOUR
    with capture_logs() as lines:
        for _ in range(100):
            machine.passes(60.0)
            clock()
    assert [line["event"] for line in lines] == ["the machine's clock was set"]
