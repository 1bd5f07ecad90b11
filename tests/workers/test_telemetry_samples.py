from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workers.telemetry_steps import record

from optimus_contract.codec import write
from optimus_contract.telemetry import Sample
from optimus_service.requests import checked
from optimus_workers.telemetry.sender import Aggregator


def aggregate(records: list[Any], sample_seconds: float = 0.25) -> list[Sample]:
    aggregator = Aggregator(sample_seconds)
    samples = [sample for one in records for sample in aggregator.add(one)]
    return samples + aggregator.take()


def test_short_steps_become_one_sample() -> None:
    parts = {
        "data_seconds": 0.01,
        "compute_seconds": 0.05,
        "push_seconds": 0.01,
        "wait_seconds": 0.02,
        "pull_seconds": 0.01,
        "sent_bytes": 1000,
        "received_bytes": 2000,
    }
    first, rest = aggregate([record(step, **parts, loss=float(step), n_examples=10 * step) for step in (1, 2, 3, 4)])
    assert write(first, without_none=True) == {
        "membership_epoch": 1,
        "rank": 0,
        "sequence": 0,
        "workers": 2,
        "servers": 1,
        "at": 1000.3,
        "step": 3,
        "n_steps": 3,
        "data_epoch": 3 / 12,
        "loss": pytest.approx((1 * 10 + 2 * 20 + 3 * 30) / 60),
        "n_examples": 60,
        "seconds": pytest.approx(0.3),
        **{name: pytest.approx(3 * value) for name, value in parts.items()},
    }
    assert (rest.step, rest.n_steps, rest.sequence) == (4, 1, 1)


def test_a_long_step_is_a_sample_at_once() -> None:
    assert [sample.step for sample in Aggregator().add(record(9, seconds=3.0))] == [9]


def test_a_sample_ends_with_the_step_that_was_evaluated() -> None:
    before, after = aggregate([record(1), record(2, metrics={"accuracy": 0.5, "bleu": math.nan}), record(3)])
    assert (before.step, before.n_steps) == (2, 2)
    assert write(before)["metrics"] == {"accuracy": 0.5, "bleu": "NaN"}
    assert after.metrics is None
    checked(Sample, write(before))


@pytest.mark.parametrize("change", [{"membership_epoch": 2}, {"rank": 1}, {"workers": 3}, {"servers": 2}])
def test_a_sample_has_one_origin(change: dict[str, int]) -> None:
    before, after = aggregate([record(1), record(2, **change)])
    assert (before.n_steps, after.n_steps) == (1, 1)
    assert after.membership_epoch == change.get("membership_epoch", 1)


def test_sequence_begins_anew_with_a_membership_epoch() -> None:
    steps = [record(step, membership_epoch=epoch, seconds=1.0) for step, epoch in enumerate((1, 1, 1, 2, 2), start=1)]
    assert [(sample.membership_epoch, sample.sequence) for sample in aggregate(steps)] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
    ]


def test_staleness_is_a_mean_over_steps() -> None:
    (sample,) = aggregate([record(1, staleness=0.0), record(2, staleness=3.0)])
    assert sample.staleness == 1.5


def test_a_worker_without_examples_tells_nothing() -> None:
    assert aggregate([record(1, n_examples=0, loss=math.nan, seconds=1.0)]) == []
    (sample,) = aggregate([record(1, n_examples=0, loss=math.nan), record(2, loss=0.5)])
    assert sample.loss == 0.5


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([math.nan, 1.0], "NaN"),
        ([math.inf, 1.0], "Infinity"),
        ([-math.inf, 1.0], "-Infinity"),
        ([math.inf, -math.inf], "NaN"),
    ],
)
def test_losses_that_json_has_no_number_for(losses: list[float], told: str) -> None:
    (sample,) = aggregate([record(step, loss=loss) for step, loss in enumerate(losses)])
    assert write(sample)["loss"] == told


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            record,
            step=st.integers(0, 100),
            membership_epoch=st.integers(1, 3),
            loss=st.floats(),
            n_examples=st.integers(0, 100),
            seconds=st.floats(0, 10),
            sent_bytes=st.integers(0, 2**40),
            staleness=st.none() | st.floats(0, 10),
        )
    )
)
def test_the_service_accepts_every_sample_and_nothing_is_lost(records: list[Any]) -> None:
    samples = aggregate(records)
    for sample in samples:
        checked(Sample, json.loads(json.dumps(write(sample, without_none=True), allow_nan=False)))
    assert sum(sample.n_examples for sample in samples) == sum(one.n_examples for one in records)
    keys = [(sample.membership_epoch, sample.rank, sample.sequence) for sample in samples]
    assert len(set(keys)) == len(keys)
