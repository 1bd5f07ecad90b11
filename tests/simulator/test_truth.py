"""Training in any pieces is the same training, and it ends when it said it would."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.model import Mode
from optimus_simulator.truth.truth import (
    AllReduceLaw,
    LossLaw,
    ParameterServerLaw,
    ParametricTruth,
    PlacedTruth,
    size_of,
)

SHAPE = ((2, 1), (1, 1))
LAW = ParameterServerLaw((1.0, 0.5, 0.4, 0.01, 0.02), batch=1.0)


def test_speeds_are_equations_3_and_4() -> None:
    assert ParameterServerLaw((1.02, 2.78, 4.92, 0.0, 0.02), 40.0)(2, 18) == pytest.approx(
        1 / (1.02 * 40 / 2 + 2.78 + 4.92 * 2 / 18 + 0.02 * 18)
    )
    asynchronous = ParameterServerLaw((2.83, 3.92, 0.0, 0.11), mode=Mode.ASYNC)
    assert asynchronous(6, 12) == pytest.approx(6 / (2.83 + 3.92 * 6 / 12 + 0.11 * 12))


def test_a_ring_of_one_exchanges_nothing() -> None:
    assert AllReduceLaw(2.0, 0.5)(1, 0) == 0.5
    assert AllReduceLaw(2.0, 0.5)(4, 0) == pytest.approx(4 / 3.5)


def test_more_workers_do_not_save_what_a_pass_takes_beside_its_examples() -> None:
    law = AllReduceLaw(2.0, 0.5, pass_seconds=0.25)
    assert law(1, 0) == pytest.approx(1 / 2.25)
    assert law(4, 0) == pytest.approx(1 / (0.25 + 2.0 / 4 + 0.5 * 3 / 4))
    training = ParametricTruth(1e6, law).begin()
    assert training.exchange_part(((4, 0),)) == pytest.approx(0.375 / 1.125)


def test_sizes_add_up_over_nodes() -> None:
    assert size_of(SHAPE) == (3, 2)


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=20), st.floats(0.1, 1.0))
def test_progress_is_conserved_however_the_time_is_cut(pieces: list[float], factor: float) -> None:
    truth = ParametricTruth(1e6, LAW)
    in_pieces, at_once = truth.begin(), truth.begin()
    for piece in pieces:
        assert in_pieces.advance(piece, SHAPE, factor) == piece
    at_once.advance(sum(pieces), SHAPE, factor)
    assert in_pieces.step == pytest.approx(at_once.step)
    assert in_pieces.step == pytest.approx(truth.steps_per_second(SHAPE) * factor * sum(pieces))


@given(st.floats(1.0, 1e5), st.floats(0.0, 0.99))
def test_a_job_ends_when_it_said_it_would(steps: float, part: float) -> None:
    training = ParametricTruth(steps, LAW).begin()
    needed = training.seconds_left(SHAPE)
    training.advance(part * needed, SHAPE)
    assert training.seconds_left(SHAPE) == pytest.approx((1 - part) * needed)
    used = training.advance(2 * needed, SHAPE)
    assert training.is_done
    assert used == pytest.approx((1 - part) * needed)


def test_without_tasks_nothing_happens() -> None:
    training = ParametricTruth(10.0, LAW).begin()
    assert training.advance(100.0, ()) == 100.0
    assert training.step == 0.0
    assert math.isinf(training.seconds_left(()))


def test_several_nodes_cost_speed_where_the_trace_says_so() -> None:
    truth = ParametricTruth(10.0, LAW, crossing_factor=0.5)
    assert truth.steps_per_second(((3, 2),)) == pytest.approx(2 * truth.steps_per_second(SHAPE))


def test_losses_follow_the_law_by_epochs() -> None:
    training = ParametricTruth(1000.0, LAW, LossLaw(0.5, 1.0, 0.1), epoch_steps=10.0).begin()
    assert training.loss() == pytest.approx(1.1)
    training.advance(20.0 / training.truth.steps_per_second(SHAPE), SHAPE)
    assert training.loss() == pytest.approx(1 / 2 + 0.1)


def test_a_placed_job_exchanges_what_crosses_between_nodes() -> None:
    law = ParameterServerLaw((1.02, 2.78, 4.92, 0.0, 0.02), 40.0)
    truth = PlacedTruth(1000.0, law)
    compute = 1.02 * 40 / 2 + 2.78 + 0.02 * 2
    assert truth.steps_per_second(((2, 2),)) == pytest.approx(1 / compute)
    assert truth.steps_per_second(((1, 1), (1, 1))) == pytest.approx(1 / (compute + 4.92 / 2))
    alone = ((1, 0), (1, 0), (0, 1), (0, 1))
    assert truth.steps_per_second(alone) == pytest.approx(law(2, 2)) == pytest.approx(1 / (compute + 4.92))
    assert truth.steps_per_second(()) == 0.0
    assert truth.oracle_speed(2, 2) == truth.steps_per_second(((2, 2),))
    assert truth.fastest(4, 3) == ((2, 1), (2, 2))


def test_uneven_parameters_cost_what_the_paper_measured() -> None:
    """Figure 21: at 10 + 10, even parameters make ResNet-50 29 % faster."""
    law = ParameterServerLaw((1.02, 2.78, 4.92, 0.0, 0.02), 40.0)
    alone = (*[(1, 0)] * 10, *[(0, 1)] * 10)
    even, uneven = (PlacedTruth(1000.0, law, uneven=each).steps_per_second(alone) for each in (False, True))
    assert even / uneven == pytest.approx(1.29, abs=0.07)
    single = ((1, 0), (0, 1))
    assert PlacedTruth(1000.0, law, uneven=True).steps_per_second(single) == law(1, 1)
