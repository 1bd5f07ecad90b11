"""What is advised on checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optimus_service.insight.predictions.dry_run import as_record
from optimus_service.insight.predictions.sizes import checkpoint_advice
from optimus_service.store.records import JobRecord

HOUR = 3600.0
NOW = 10 * HOUR


def script(every: float | None, write: float | None, learned_from: str = "printed", **changes: Any) -> JobRecord:
    record = as_record({"name": "a", "project": "p"}, now=0.0)
    profile = {
        "checkpoint_every_seconds": every,
        "checkpoint_write_seconds": write,
        "learned_from": learned_from,
    }
    return replace(record, profile=profile, started_at=0.0, **changes)


def test_a_checkpoint_that_is_written_too_often_is_told() -> None:
    found = checkpoint_advice(script(30.0, 3.0), (0, 0.0), NOW)
    assert found is not None
    assert found.seconds_between_interruptions == 7 * 24 * HOUR
    assert found.best_every_seconds == pytest.approx(1905, rel=0.01)
    assert found.lost_share == pytest.approx(0.1, abs=0.001)
    assert found.best_lost_share == pytest.approx(0.0031, abs=0.0002)
    assert found.message == (
        "Checkpoints every 32 min instead of every 30 s: 0.3 % of the time lost instead of 10.0 %; writing one takes "
        "3.0 s, and an interruption is expected every 7 days."
    )


def test_one_that_is_written_too_rarely_is_told() -> None:
    found = checkpoint_advice(script(8 * HOUR, 10.0), (200, 1000 * HOUR), NOW)
    assert found is not None
    assert found.best_every_seconds < HOUR
    assert "minutes" not in found.message
    assert "instead of every 8.0 h" in found.message


def test_what_is_about_right_is_called_so() -> None:
    found = checkpoint_advice(script(1800.0, 3.0), (0, 0.0), NOW)
    assert found is not None
    assert found.message.startswith("Checkpoints every 30 min are about right: ")


def test_changes_of_size_interrupt_unless_the_script_saves_for_them() -> None:
    often = checkpoint_advice(script(600.0, 2.0, rescales=20), (0, 0.0), NOW)
    asked = checkpoint_advice(script(600.0, 2.0, "client", rescales=20), (0, 0.0), NOW)
    assert often is not None
    assert asked is not None
    assert often.seconds_between_interruptions == pytest.approx(0.5 * HOUR, rel=0.01)
    assert asked.seconds_between_interruptions == 7 * 24 * HOUR


@pytest.mark.parametrize(("every", "write"), [(None, None), (10.0, None), (10.0, 10.0), (10.0, 12.0)])
def test_without_figures_that_make_sense_nothing_is_advised(every: float | None, write: float | None) -> None:
    assert checkpoint_advice(script(every, write), (0, 0.0), NOW) is None
