"""Noise scale, step times and goodput of jobs with an elastic batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.speed.batch import BatchSamples, BatchSpeed
from optimus_models.speed.goodput import ElasticBatch, Goodput, NoiseScale, StepTimes, cut, gain

LIMITS = ElasticBatch(32, 4096, 256)


def true_seconds(workers: np.ndarray, local: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """What the job that is measured here really takes."""
    return np.asarray(passes * (0.02 + 0.001 * local) + true_exchange(workers))


def true_exchange(workers: np.ndarray) -> np.ndarray:
    return np.where(workers > 1, 0.05 + 0.002 * workers, 0.0)


def measured(sizes: list[tuple[int, int]], slower: float = 1.0) -> BatchSamples:
    workers, batches = (np.array(column) for column in zip(*sizes, strict=True))
    passes, local = cut(LIMITS, workers, batches)
    seconds = slower * true_seconds(workers, local, passes)
    return BatchSamples(workers, local, passes, seconds, slower * true_exchange(workers))


# --- noise -----------------------------------------------------------------------------------------------------------


@given(st.floats(1e-3, 1e6), st.integers(1, 1000), st.integers(1, 100))
def test_a_larger_batch_gains_no_more_than_its_examples(noise: float, initial: int, factor: int) -> None:
    (one, more) = gain([initial, initial * factor], initial, noise)
    assert one == pytest.approx(1.0)
    assert 1.0 - 1e-9 <= more <= factor * (1.0 + 1e-9)
    assert more <= (1.0 + noise / initial) * (1.0 + 1e-9)


def test_pollux_efficiency_is_gain_by_batch() -> None:
    batch, initial, phi = 256.0, 32.0, 500.0
    efficiency = (phi + initial) / (phi + batch)
    assert gain([batch], initial, phi)[0] == pytest.approx(efficiency * batch / initial)


def test_two_batches_tell_the_noise_scale_that_gain_is_made_of() -> None:
    """The expected squared norm of a gradient of B examples is |G|² + tr(Σ)/B: progress is its useful part."""
    squared, trace = 2.0, 300.0
    useful = [squared / (squared + trace / batch) for batch in (64.0, 512.0)]
    assert gain([512.0], 64.0, trace / squared)[0] == pytest.approx(useful[1] / useful[0])


def test_nothing_known_of_the_noise_gains_nothing() -> None:
    unknown = NoiseScale.fit([], [])
    assert (unknown.examples, unknown.n_points) == (0.0, 0)
    assert gain([64, 1024], 64, unknown.examples) == pytest.approx([1.0, 1.0])


def test_the_newest_readings_count_most() -> None:
    fitted = NoiseScale.fit([1, 2, 3, 4], [100.0, 100.0, 100.0, 1000.0])
    assert 200.0 < fitted.examples < 1000.0


def test_ended_jobs_tell_how_noise_grows_and_the_job_itself_its_level() -> None:
    steps = np.arange(1.0, 101.0)
    grown = [(steps, 10.0 * steps), (steps, 12.0 * steps)]
    fresh = NoiseScale.fit([], [], grown)
    late = NoiseScale.fit([80.0, 90.0, 100.0], [1600.0, 1800.0, 2000.0], grown)
    assert fresh.examples == pytest.approx(11.0, rel=0.1)
    assert late.examples == pytest.approx(2000.0, rel=0.25)
    assert late.examples > 1.3 * 1100.0, "this one is noisier than the others were"


# --- step times ------------------------------------------------------------------------------------------------------


def test_step_times_are_those_that_were_measured() -> None:
    sizes = [(1, 32), (1, 256), (2, 128), (4, 1024), (8, 512), (8, 2048)]
    speed = BatchSpeed.fit(measured(sizes), LIMITS.per_pass)
    for workers, batch in [*sizes, (4, 512), (8, 1024)]:
        passes, local = cut(LIMITS, [workers], [batch])
        expected = true_seconds(np.array([workers]), local, passes)
        assert speed.step_seconds([workers], local, passes) == pytest.approx(expected, rel=0.15)


def test_others_tell_the_shape() -> None:
    sizes = [(1, 32), (1, 256), (2, 512), (4, 1024), (8, 512), (8, 2048)]
    others = [measured(sizes, slower) for slower in (0.8, 1.1)]
    informed = BatchSpeed.fit(measured([(1, 32)]), LIMITS.per_pass, others)
    passes, local = cut(LIMITS, [8], [2048])
    assert informed.step_seconds([8], local, passes) == pytest.approx(
        true_seconds(np.array([8]), local, passes), rel=0.2
    )
    assert informed.confidence > BatchSpeed.fit(measured([(1, 32)]), LIMITS.per_pass).confidence
    assert informed.n_points == 1


_numbers = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_numbers, _numbers, _numbers, _numbers, _numbers), max_size=6))
def test_never_raises_on_data(rows: list[tuple[float, ...]]) -> None:
    columns = BatchSamples(*np.array(rows, dtype=float).reshape(-1, 5).T)
    speed = BatchSpeed.fit(columns, 64.0, [columns])
    assert (speed.step_seconds([1, 8], [64, 8], [1, 3]) > 0).all()
    noise = NoiseScale.fit([row[0] for row in rows], [row[1] for row in rows], [(columns.workers, columns.local)])
    assert np.isfinite(noise.examples)


# --- goodput ---------------------------------------------------------------------------------------------------------


def goodput(noise: float, fixed: int | None = None, limits: ElasticBatch = LIMITS) -> Goodput:
    speed = BatchSpeed.fit(measured([(1, 32), (1, 256), (4, 1024), (8, 512), (8, 2048)]), limits.per_pass)
    return Goodput(StepTimes(speed, limits), NoiseScale(noise, 1), speed.confidence, fixed)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 1e6), st.integers(1, 40))
def test_the_chosen_batch_is_the_best_of_all(noise: float, workers: int) -> None:
    model = goodput(noise)
    by_hand = {batch: model.at(workers, batch) for batch in LIMITS.choices(workers)}
    best = model.best_batch(workers)
    assert by_hand[best] == pytest.approx(max(by_hand.values()))
    assert model.predict([workers], [0])[0] == pytest.approx(by_hand[best])


def test_the_grid_of_batches_loses_little() -> None:
    """Against every batch that there is."""
    model = goodput(700.0)
    for workers in (1, 2, 4, 8):
        every = max(model.at(workers, batch) for batch in range(LIMITS.minimum, LIMITS.most(workers) + 1))
        assert model.predict([workers], [0])[0] > 0.97 * every


def test_noisier_gradients_ask_for_larger_batches() -> None:
    batches = [goodput(noise).best_batch(8) for noise in (0.0, 100.0, 1000.0, 1e6)]
    assert batches == sorted(batches)
    assert batches[0] < batches[-1]


def test_a_fixed_batch_stays() -> None:
    model = goodput(700.0, fixed=512)
    assert {model.best_batch(workers) for workers in (1, 3, 8, 20)} == {512}
    assert model.predict([8], [0])[0] == pytest.approx(model.at(8, 512))


def test_a_choice_is_worth_no_less_than_a_fixed_batch() -> None:
    workers = np.arange(1, 33)
    free, bound = goodput(700.0).predict(workers, workers), goodput(700.0, fixed=512).predict(workers, workers)
    assert (free >= 0.97 * bound).all()


def test_bounds_hold_the_mean_and_widen_with_coverage() -> None:
    model = goodput(700.0)
    low, high = model.predict_interval([1, 8], [0, 0], 0.5)
    lower, higher = model.predict_interval([1, 8], [0, 0], 0.9)
    mean = model.predict([1, 8], [0, 0])
    assert (lower < low).all()
    assert (low < mean).all()
    assert (mean < high).all()
    assert (high < higher).all()
