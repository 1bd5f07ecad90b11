"""The pure rules: which samples count, and what they say of progress."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.store.store_builders import a_sample

from optimus_contract.telemetry import Sample, SampleColumns
from optimus_service.store.database.tables import join_float, split_float
from optimus_service.store.samples.counting import (
    BLOCK,
    Block,
    Counted,
    EpochBounds,
    Progress,
    advance_progress,
    blocks_of,
    mark,
    sort_out,
)

# Epoch 2 began where epoch 1 had come to; a death threw it back from 80 to 60, where epoch 4 began (3 is unreported).
REPORTED = {1: EpochBounds(0, 2), 2: EpochBounds(50, 4), 4: EpochBounds(60, 1)}


def why_of(sample: Sample, reported: dict[int, EpochBounds]) -> str | None:
    columns = SampleColumns.of([sample])
    return sort_out(columns, reported, {block: Counted() for block in blocks_of(columns)}).ignored.get(0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"membership_epoch": 1, "step": 50}, None),
        ({"membership_epoch": 1, "step": 51}, "old_membership"),
        ({"membership_epoch": 1, "step": 40, "rank": 2}, "old_membership"),
        ({"membership_epoch": 2, "step": 60, "rank": 3}, None),
        ({"membership_epoch": 2, "step": 61}, "old_membership"),
        ({"membership_epoch": 2, "step": 62, "n_steps": 5}, "old_membership"),
        ({"membership_epoch": 3, "step": 55, "rank": 9}, None),
        ({"membership_epoch": 3, "step": 70}, "old_membership"),
        ({"membership_epoch": 4, "step": 10_000}, None),
        ({"membership_epoch": 4, "step": 70, "rank": 1}, "old_membership"),
        ({"membership_epoch": 5, "step": 70, "rank": 8}, None),
        ({"membership_epoch": 6, "step": 70}, "unknown_membership"),
    ],
)
def test_a_sample_counts_if_its_steps_belong_to_the_history(changes: dict[str, Any], why: str | None) -> None:
    assert why_of(a_sample(**changes), REPORTED) == why


def test_the_first_membership_may_be_told_of_before_its_report() -> None:
    assert why_of(a_sample(membership_epoch=1), {}) is None
    assert why_of(a_sample(membership_epoch=2), {}) == "unknown_membership"


def test_a_later_rollback_reaches_into_older_epochs() -> None:
    reported = {1: EpochBounds(0, 1), 2: EpochBounds(50, 1), 3: EpochBounds(30, 1)}
    assert why_of(a_sample(membership_epoch=1, step=30), reported) is None
    assert why_of(a_sample(membership_epoch=1, step=40), reported) == "old_membership"


def test_a_repeat_within_a_post_is_a_duplicate() -> None:
    post = [a_sample(sequence=1), a_sample(sequence=BLOCK), a_sample(sequence=1), a_sample(membership_epoch=7)]
    columns = SampleColumns.of(post)
    blocks = {block: Counted() for block in blocks_of(columns)}
    found = sort_out(columns, {}, blocks)
    assert found.counted == [0, 1]
    assert found.ignored == {2: "duplicate", 3: "unknown_membership"}
    mark(columns.taken(found.counted), blocks)
    assert blocks == {Block(1, 0, 0): Counted(0b10, 1), Block(1, 0, 1): Counted(0b1, 1), Block(7, 0, 0): Counted()}
    assert sort_out(columns, {}, blocks).counted == []


def test_the_furthest_sample_tells_the_progress() -> None:
    samples = [a_sample(step=8, n_steps=4, loss=math.nan, data_epoch=0.8), a_sample(step=4, n_steps=4, loss=3.0)]
    after = advance_progress(Progress(0, None, None, None), SampleColumns.of(samples))
    assert (after.step, after.first_step, after.epoch) == (8, 1, 0.8)
    assert after.loss is not None
    assert math.isnan(after.loss)


SAMPLES = st.builds(
    a_sample,
    step=st.integers(0, 100),
    n_steps=st.integers(1, 20),
    rank=st.integers(0, 3),
    loss=st.floats(allow_nan=False),
)


@given(st.lists(SAMPLES, min_size=1), st.integers(0, 100))
def test_progress_does_not_depend_on_how_samples_are_cut_into_posts(samples: list[Sample], start: int) -> None:
    before = Progress(start, None, None, None)
    one_by_one = before
    for sample in samples:
        one_by_one = advance_progress(one_by_one, SampleColumns.of([sample]))
    together = advance_progress(before, SampleColumns.of(samples))
    assert (one_by_one.step, one_by_one.first_step) == (together.step, together.first_step)
    assert together.step == max([start, *(sample.step for sample in samples)])


@given(st.none() | st.floats())
def test_a_float_survives_two_columns(value: float | None) -> None:
    column, kind = split_float(value)
    assert column is None or math.isfinite(column)
    restored = join_float(column, kind)
    if value is not None and math.isnan(value):
        assert restored is not None
        assert math.isnan(restored)
    else:
        assert restored == value
