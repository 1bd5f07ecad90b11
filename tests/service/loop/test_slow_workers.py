"""Stragglers are found by what their own work takes, whatever they wait for."""

from __future__ import annotations

import pytest

from optimus_contract.telemetry import SAMPLE_FIELDS, Sample
from optimus_service.observe.stragglers import LEAST_SECONDS, LEAST_STEPS, WINDOW_STEPS, SlowWorkers

PER_RECORD = 5
"""Steps."""


def fed(
    seconds: dict[int, float], n_steps: int = 40, *, epoch: int = 1, into: SlowWorkers | None = None
) -> SlowWorkers:
    """Workers of 10 examples a step that need so many seconds for it, each."""
    watch = into or SlowWorkers()
    for number in range(1 + n_steps // PER_RECORD):
        for rank, own in seconds.items():
            sample = Sample(
                membership_epoch=epoch,
                rank=rank,
                sequence=number,
                workers=len(seconds),
                servers=1,
                at=0.0,
                step=number,
                n_steps=PER_RECORD,
                data_epoch=0.0,
                loss=1.0,
                n_examples=10 * PER_RECORD,
                seconds=PER_RECORD * max(seconds.values()),
                compute_seconds=0.9 * PER_RECORD * own,
                data_seconds=0.1 * PER_RECORD * own,
            )
            watch.add({name: [getattr(sample, name)] for name in SAMPLE_FIELDS})
    return watch


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({0: 1.0, 1: 1.0, 2: 1.0}, ()),
        ({0: 1.0, 1: 1.9, 2: 1.0}, ()),
        ({0: 1.0, 1: 2.1, 2: 1.0}, (1,)),
        ({0: 1.0, 1: 3.0, 2: 4.0, 3: 1.0, 4: 1.0}, (2, 1)),
        ({0: 1.0, 1: 4.0}, (1,)),
        ({0: 5.0}, ()),
    ],
)
def test_who_is_slower_than_half_the_median_is_a_straggler(seconds: dict[int, float], slow: tuple[int, ...]) -> None:
    assert fed(seconds).ranks() == slow


def test_nobody_is_judged_on_little() -> None:
    assert fed({0: 1.0, 1: 9.0}, LEAST_STEPS - PER_RECORD).ranks() == ()
    quick = LEAST_SECONDS / 50
    assert fed({0: quick, 1: 9 * quick}, 40).ranks() == (), "the quick one has not worked long enough"


def test_a_new_membership_is_measured_anew_and_late_records_of_the_old_one_do_not_count() -> None:
    watch = fed({0: 1.0, 1: 9.0})
    fed({0: 1.0, 1: 1.0}, epoch=2, into=watch)
    assert watch.ranks() == ()
    fed({0: 1.0, 1: 9.0}, 4 * WINDOW_STEPS, epoch=1, into=watch)
    assert watch.ranks() == ()


def test_a_worker_that_becomes_slow_is_found_by_its_newest_steps() -> None:
    watch = fed({0: 1.0, 1: 1.0}, 4 * WINDOW_STEPS)
    fed({0: 1.0, 1: 4.0}, WINDOW_STEPS, into=watch)
    assert watch.ranks() == (1,)
