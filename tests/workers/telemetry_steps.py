"""Builds the telemetry of single steps for the tests."""

from __future__ import annotations

from typing import Any

from optimus_contract.telemetry import Sample


def record(step: int = 1, **changes: Any) -> Sample:
    """Step `step` of rank 0 of two, 0.1 s long and ended at `step` tenths of a second."""
    values: dict[str, Any] = {
        "membership_epoch": 1,
        "rank": 0,
        "sequence": 0,
        "workers": 2,
        "servers": 1,
        "at": 1000.0 + step / 10,
        "step": step,
        "data_epoch": step / 12,
        "loss": 1.0,
        "n_examples": 60,
        "seconds": 0.1,
    }
    return Sample(**values | changes)
