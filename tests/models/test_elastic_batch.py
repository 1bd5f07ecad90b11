"""Which batches there are, and how they are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.speed.goodput import ElasticBatch, cut


@st.composite
def limits(draw: st.DrawFn) -> ElasticBatch:
    per_pass, passes = draw(st.integers(1, 300)), draw(st.integers(1, 16))
    minimum = draw(st.integers(1, per_pass * passes))
    return ElasticBatch(minimum, minimum + draw(st.integers(0, 5000)), per_pass, passes)


@given(limits(), st.integers(1, 64))
def test_choices_are_within_all_bounds(bounds: ElasticBatch, workers: int) -> None:
    choices = bounds.choices(workers)
    assert choices == tuple(sorted(set(choices)))
    assert choices, "there is always one"
    assert bounds.minimum <= choices[0]
    assert choices[-1] <= bounds.maximum
    assert choices[-1] <= bounds.per_pass * bounds.most_passes * workers
    assert choices[-1] == bounds.most(workers), "the largest is considered"


@given(limits(), st.integers(1, 64), st.data())
def test_a_cut_holds_the_whole_batch_and_fits(bounds: ElasticBatch, workers: int, data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from(bounds.choices(workers)))
    (passes,), (local,) = cut(bounds, [workers], [batch])
    assert passes * local * workers >= batch
    assert local <= bounds.per_pass
    assert passes <= max(bounds.most_passes, 2)
    assert (passes - 1) * local * workers < batch or passes == 2, "no pass is empty"


def test_a_worker_alone_computes_two_gradients_of_all_but_the_initial_batch() -> None:
    bounds = ElasticBatch(32, 512, 64)
    assert cut(bounds, [1, 1, 2], [32, 33, 64]).passes.tolist() == [1, 2, 1]


def test_the_table_is_the_choices_one_after_the_other() -> None:
    bounds = ElasticBatch(16, 1024, 64)
    table = bounds.table(5)
    for workers, first in enumerate(table.first.tolist(), start=1):
        choices = bounds.choices(workers)
        here = slice(first, first + len(choices))
        assert table.batches[here].tolist() == list(choices)
        assert (table.workers[here] == workers).all()
    assert len(table.batches) == sum(len(bounds.choices(w)) for w in range(1, 6))


@pytest.mark.parametrize("wrong", [(0, 10, 4), (20, 10, 40), (100, 200, 0), (100, 200, 6, 16), (10, 20, 10, 0)])
def test_bounds_that_hold_no_batch_are_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot"):
        ElasticBatch(*wrong)


def test_batches_are_evenly_spread() -> None:
    batches = np.array(ElasticBatch(128, 4096, 1024).choices(8), dtype=float)
    assert (batches[1:] / batches[:-1] < 1.5).all()
