from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workers.sampling import micro_batch_of_step, step_indices

sizes = st.integers(1, 60)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    n_examples=sizes,
    batch=sizes,
    n_micro_batches=st.integers(1, 16),
    memberships=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_each_example_once_per_epoch_under_any_membership_history(
    seed: int, n_examples: int, batch: int, n_micro_batches: int, memberships: list[int]
) -> None:
    """`memberships[t]` workers share the slots of step t; what they train on together is the stream."""
    stream: list[int] = []
    for step, n_workers in enumerate(memberships):
        shares = [
            range(n_micro_batches * rank // n_workers, n_micro_batches * (rank + 1) // n_workers)
            for rank in range(n_workers)
        ]
        for slot in (slot for share in shares for slot in share):
            stream.extend(micro_batch_of_step(seed, step, slot, n_micro_batches, batch, n_examples).tolist())
    assert len(stream) == batch * len(memberships)
    for start in range(0, len(stream), n_examples):
        counts = Counter(stream[start : start + n_examples])
        assert set(counts.values()) == {1}
        if start + n_examples <= len(stream):
            assert sorted(counts) == list(range(n_examples))


@settings(deadline=None)
@given(batch=sizes, n_micro_batches=st.integers(1, 80))
def test_micro_batches_differ_by_one_example_at_most(batch: int, n_micro_batches: int) -> None:
    sizes = [len(micro_batch_of_step(0, 3, slot, n_micro_batches, batch, 50)) for slot in range(n_micro_batches)]
    assert sum(sizes) == batch
    assert max(sizes) - min(sizes) <= 1


def test_is_a_pure_function() -> None:
    first = micro_batch_of_step(5, 17, 2, 12, 120, 1437)
    for other_step in range(0, 400, 50):
        step_indices(6, other_step, 120, 1437)  # pushes the permutation at hand out of the cache
    assert np.array_equal(first, micro_batch_of_step(5, 17, 2, 12, 120, 1437))


def test_seeds_epochs_and_steps_give_different_orders() -> None:
    orders = {tuple(step_indices(seed, step, 20, 20).tolist()) for seed in (0, 1) for step in (0, 1)}
    assert len(orders) == 4


def test_order_does_not_change_between_versions() -> None:
    """A resumed job goes on in the middle of an epoch: its order must be the one that it began with."""
    assert step_indices(0, 0, 5, 10).tolist() == GOLDEN[0]
    assert step_indices(0, 3, 5, 10).tolist() == GOLDEN[1]


GOLDEN = [[4, 6, 2, 7, 3], [6, 0, 4, 2, 5]]


def test_a_batch_may_hold_several_epochs() -> None:
    assert Counter(step_indices(1, 0, 11, 5).tolist()).most_common(1)[0][1] == 3


def test_refuses_a_slot_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="must be from 0 to 11"):
        micro_batch_of_step(0, 0, 12, 12, 120, 1437)
    with pytest.raises(ValueError, match="micro-batch"):
        micro_batch_of_step(0, 0, -1, 12, 120, 1437)


def test_nobody_can_change_the_cached_order() -> None:
    with pytest.raises(ValueError, match="read-only"):
        step_indices(0, 0, 5, 10)[0] = 1
