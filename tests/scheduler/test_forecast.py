"""What is believed of a job, and what stands in where nothing can be known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, NOW, a_job, a_spec, law, samples

from optimus_models.calibration import Errors, Experience, Judged
from optimus_scheduler.forecast.forecast import RememberingForecaster, forecast
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import ConvergenceRule, Directive, Forecast, Interval, Job, JobState, Mode, SpeedSample
from optimus_scheduler.settings import Settings

EPOCH = 20.0
"""Steps per epoch in these tests."""


def predict(job: Job) -> Outlook:
    return forecast(job, NOW, Settings())


def curve(steps: Sequence[float], noise: float = 0.0, seed: int = 0) -> tuple[float, ...]:
    random = Random(seed)
    return tuple((1 / (0.9 * k / EPOCH + 0.45) + 0.05) * (1 + random.gauss(0, noise)) for k in steps)


def trained(
    epochs: float, rule: ConvergenceRule, *, noise: float = 0.0, seed: int = 0, directive: Directive = Directive.RUN
) -> Job:
    """A job that has trained for so many epochs at one loss per five steps."""
    steps = tuple(float(k) for k in range(5, int(epochs * EPOCH) + 1, 5))
    return a_job(
        "a",
        has=(2, 1),
        spec=a_spec(rule=rule),
        measured=samples(law(), ALL_SIZES),
        step=int(epochs * EPOCH),
        steps_per_epoch=EPOCH,
        loss_steps=steps,
        losses=curve(steps, noise, seed),
        directive=directive,
    )


def true_end(below: float, patience: int = 3) -> float:
    """Steps after which the noiseless curve fulfils the rule."""
    epoch = 1
    while True:
        losses = curve([(epoch + i) * EPOCH for i in range(patience + 1)])
        if all(a - b < below * a for a, b in pairwise(losses)):
            return (epoch + patience) * EPOCH
        epoch += 1


CHANGES: dict[str, dict[str, object]] = {
    "nothing": {},
    "step": {"step": 700},
    "epoch-length": {"steps_per_epoch": 30.0},
    "epochs-made": {"epochs": 9.0},
    "directive": {"directive": Directive.FINISH},
    "experience": {"experience": Experience(steps=Errors([Judged("b", "", 0.5, 0.3, 1.5)] * 5))},
}


@pytest.mark.parametrize(
    "rule", [ConvergenceRule(max_epochs=50), ConvergenceRule(max_seconds=9_000.0)], ids=["epochs", "time"]
)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_of_an_end_is_what_would_be_found_anew(change: str, rule: ConvergenceRule) -> None:
    before = replace(trained(20, replace(rule, loss_decrease=0.001), noise=0.01), started_at=NOW - 100.0)
    after = replace(before, **CHANGES[change])  # type: ignore[arg-type]  # fields by name
    forecaster = RememberingForecaster()
    for job, now, settings in ((before, NOW, Settings()), (after, NOW + 60.0, Settings()), (after, NOW, LATER)):
        assert forecaster([job], now, settings)[0].forecast == forecast(job, now, settings).forecast


LATER = Settings(convergence_points=10_000)


# --- the end of the job ----------------------------------------------------------------------------------------------


def test_a_fixed_number_of_steps_is_taken_at_face_value() -> None:
    believed = predict(a_job("a", has=(1, 1), step=400, spec=a_spec(rule=ConvergenceRule(max_steps=1000)))).forecast
    assert believed.remaining_steps == Interval(600.0, 600.0, 600.0)
    assert (believed.confidence, believed.rule) == (1.0, "max_steps")


def test_epochs_need_to_know_their_length() -> None:
    rule = ConvergenceRule(max_epochs=10)
    unknown = predict(a_job("a", spec=a_spec(rule=rule))).forecast
    known = predict(a_job("a", spec=a_spec(rule=rule), steps_per_epoch=EPOCH)).forecast
    assert unknown.total_steps is None
    assert known.total_steps == Interval(200.0, 200.0, 200.0)


def test_nothing_done_and_no_limit_says_nothing() -> None:
    believed = predict(a_job("a", spec=a_spec(rule=ConvergenceRule(target_loss=0.1)))).forecast
    assert believed == Forecast("a", None, None, 0.0)


def test_without_evidence_it_lasts_as_long_again() -> None:
    job = a_job("a", has=(1, 1), step=90, spec=a_spec(rule=ConvergenceRule(target_loss=0.1)))
    believed = predict(job).forecast
    assert believed.remaining_steps == Interval(90.0, 10.0, 810.0)
    assert believed.confidence < 0.1


def test_a_limit_bounds_what_the_loss_may_end_earlier() -> None:
    rule = ConvergenceRule(loss_decrease=0.01, max_epochs=50)
    job = a_job(
        "a", has=(1, 1), step=9, steps_per_epoch=EPOCH, spec=a_spec(rule=rule), loss_steps=(9.0,), losses=(1.0,)
    )
    remaining = predict(job).forecast.remaining_steps
    assert remaining is not None
    first, limit = 4 * EPOCH, 50 * EPOCH  # the rule compares three epochs with the first one
    assert remaining.mean == pytest.approx((first * limit) ** 0.5 - 9)
    assert remaining.low == pytest.approx(first**0.9 * limit**0.1 - 9)
    assert remaining.high == pytest.approx(limit - 9)


@pytest.mark.parametrize(("epochs", "error"), [(8, 0.4), (15, 0.25), (25, 0.25)])
def test_the_end_is_found_from_the_loss(epochs: int, error: float) -> None:
    rule = ConvergenceRule(loss_decrease=0.02, max_epochs=500)
    believed = predict(trained(epochs, rule, noise=0.01)).forecast
    assert believed.total_steps is not None
    assert believed.rule == "loss_decrease"
    assert believed.total_steps.mean == pytest.approx(true_end(0.02), rel=error)
    assert believed.total_steps.low <= true_end(0.02) * 1.05
    assert believed.loss_curve.keys() >= {"beta0", "beta1", "beta2", "scale"}


# --- converged -------------------------------------------------------------------------------------------------------

DECREASE = ConvergenceRule(loss_decrease=0.02, max_epochs=500)
TARGET = ConvergenceRule(target_loss=0.12, max_epochs=500)


@pytest.mark.parametrize("rule", [DECREASE, TARGET])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_noise_does_not_fire_the_rule(rule: ConvergenceRule, noise: float) -> None:
    """At a third of the way, where the raw noisy rule would already have fired."""
    for seed in range(20):
        assert not predict(trained(8, rule, noise=noise, seed=seed)).forecast.converged


@pytest.mark.parametrize("rule", [DECREASE, TARGET])
def test_the_rule_fires_in_the_end(rule: ConvergenceRule) -> None:
    believed = predict(trained(2 * true_end(0.02) / EPOCH, rule, noise=0.03)).forecast
    assert believed.converged
    assert believed.remaining_steps == Interval(0.0, 0.0, 0.0)
    assert believed.rule in ("loss_decrease", "target_loss")


@pytest.mark.parametrize("rule", [DECREASE, TARGET])
@pytest.mark.parametrize("n_losses", [5, 8, 11])
def test_a_fast_job_is_not_expected_to_end_before_its_losses_are_enough_to_judge_by(
    rule: ConvergenceRule, n_losses: int
) -> None:
    apart = 10 * EPOCH
    steps = tuple(apart * n for n in range(1, n_losses + 1))
    fast = replace(trained(1, rule), step=int(steps[-1]), loss_steps=steps, losses=curve(steps))
    believed = predict(fast).forecast
    assert not believed.converged
    assert believed.total_steps is not None
    assert believed.total_steps.low >= 12 * apart
    enough = tuple(apart * n for n in range(1, 13))
    judged = replace(fast, step=int(enough[-1]), loss_steps=enough, losses=curve(enough))
    assert predict(judged).forecast.converged


@pytest.mark.parametrize("rule", [DECREASE, TARGET])
def test_the_rule_of_a_job_without_tasks_is_looked_at_when_it_goes_on(rule: ConvergenceRule) -> None:
    """It goes on from a checkpoint, of which nobody knows the step: what it has learned may be thrown away."""
    job = trained(2 * true_end(0.02) / EPOCH, rule, noise=0.03)
    assert not predict(replace(job, state=JobState.PAUSED)).forecast.converged


def test_the_first_epoch_never_fires() -> None:
    steps = tuple(float(k) for k in range(1, 19))
    job = trained(1, DECREASE)
    flat = a_job("a", has=(1, 1), spec=job.spec, step=18, steps_per_epoch=EPOCH, loss_steps=steps, losses=(0.1,) * 18)
    assert not predict(flat).forecast.converged


def test_a_diverged_run_has_not_converged() -> None:
    job = trained(100, TARGET)
    losses = (*job.losses[:-1], float("nan"))
    diverged = a_job("a", has=(1, 1), spec=job.spec, step=job.step, loss_steps=job.loss_steps, losses=losses)
    assert not predict(diverged).forecast.converged


@pytest.mark.parametrize("rule", [ConvergenceRule(max_steps=100), ConvergenceRule(max_epochs=5)])
@pytest.mark.parametrize(("step", "ends"), [(100, False), (101, False), (10_000, True)])
def test_a_limit_that_was_set_below_what_is_trained_ends_the_job(rule: ConvergenceRule, step: int, ends: bool) -> None:
    """A coordinator of an earlier release keeps the limit with which it began; one at its limit is told nothing."""
    job = a_job("a", has=(1, 1), step=step, steps_per_epoch=20.0, spec=a_spec(rule=rule))
    assert predict(job).forecast.converged is ends


@pytest.mark.parametrize("rule", [ConvergenceRule(max_steps=100), ConvergenceRule(max_epochs=5)])
def test_exact_limits_are_left_to_the_coordinator(rule: ConvergenceRule) -> None:
    assert not predict(trained(5, rule)).forecast.converged


def test_the_time_limit_counts_from_the_start() -> None:
    spec = a_spec(rule=ConvergenceRule(max_seconds=60))
    assert not predict(
        a_job("a", has=(1, 1), spec=spec, submitted_at=NOW - 500, started_at=NOW - 59)
    ).forecast.converged
    assert predict(a_job("a", has=(1, 1), spec=spec, started_at=NOW - 60)).forecast.rule == "max_seconds"
    assert not predict(a_job("a", spec=spec, submitted_at=NOW - 500)).forecast.converged


def test_a_job_told_to_finish_stays_converged() -> None:
    assert predict(trained(5, DECREASE, directive=Directive.FINISH)).forecast.converged


# --- speed -----------------------------------------------------------------------------------------------------------


def test_no_measurement_no_speed() -> None:
    outlook = predict(a_job("a", has=(1, 1), step=10))
    assert outlook.forecast.steps_per_second is None
    assert outlook.forecast.remaining_seconds is None
    assert outlook.learning
    assert not outlook.measured


def test_speeds_are_learned() -> None:
    speed = law()
    outlook = predict(a_job("a", has=(2, 2), measured=samples(speed, ALL_SIZES), step=10))
    assert not outlook.learning
    assert outlook.forecast.steps_per_second == pytest.approx(speed(2, 2), rel=0.05)
    assert outlook.speeds.at(outlook.size(12, 9)) == pytest.approx(speed(12, 9), rel=0.15)


def test_old_measurements_fade() -> None:
    was, is_now = law(), law(compute=2.0)
    old = samples(was, [(1, 1)] * 5, at=NOW - 7200)
    new = samples(is_now, [(1, 1)] * 2, at=NOW - 10)
    believed = predict(a_job("a", has=(1, 1), measured=old + new)).forecast
    assert believed.steps_per_second == pytest.approx(is_now(1, 1), rel=0.1)


@pytest.mark.parametrize(
    ("sample", "granted_ago", "measured"),
    [
        (SpeedSample(1, 1, 1.0, n_steps=20, at=NOW), 60.0, True),
        (SpeedSample(1, 1, 1.0, n_steps=3, at=NOW), 60.0, False),
        (SpeedSample(2, 1, 1.0, n_steps=20, at=NOW), 60.0, False),
        (SpeedSample(1, 1, 1.0, n_steps=20, at=NOW - 61), 60.0, False),
        (SpeedSample(1, 1, 1.0, n_steps=20, at=NOW), 5.0, False),
    ],
)
def test_a_size_counts_as_measured(sample: SpeedSample, granted_ago: float, measured: bool) -> None:
    job = a_job("a", has=(1, 1), measured=(sample,), allocated_at=NOW - granted_ago)
    assert predict(job).measured is measured


def test_waiting_is_counted() -> None:
    assert predict(a_job("a", submitted_at=NOW - 33)).waited_seconds == 33
    assert predict(a_job("a", has=(1, 1), submitted_at=NOW - 33)).waited_seconds == 0


floats = st.floats(allow_nan=True, allow_infinity=True)


@hypothesis_settings(deadline=None, max_examples=150)
@given(
    losses=st.lists(floats, max_size=40),
    speeds=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8), floats), max_size=10),
    stops=st.lists(floats, max_size=5),
    step=st.integers(0, 10**7),
    mode=st.sampled_from(Mode),
    rule=st.builds(
        ConvergenceRule,
        loss_decrease=st.none() | st.floats(1e-6, 0.5),
        target_loss=st.none() | st.floats(-1e3, 1e3),
        max_steps=st.none() | st.integers(1, 10**9),
        max_seconds=st.none() | st.floats(0.1, 1e6),
    ),
    steps_per_epoch=st.none() | st.floats(0.5, 1e6),
)
def test_hostile_data_gives_ordered_finite_answers(
    losses: list[float],
    speeds: list[tuple[int, int, float]],
    stops: list[float],
    step: int,
    mode: Mode,
    rule: ConvergenceRule,
    steps_per_epoch: float | None,
) -> None:
    spec = a_spec(rule=rule)
    job = a_job(
        "a",
        has=(1, 1),
        spec=type(spec)(spec.worker, spec.server, rule, mode, global_batch_size=32),
        step=step,
        steps_per_epoch=steps_per_epoch,
        loss_steps=tuple(float(k) for k in range(len(losses))),
        losses=tuple(losses),
        measured=tuple(SpeedSample(w, p, f, n_steps=5, at=NOW) for w, p, f in speeds),
        rescale_seconds=tuple(stops),
    )
    outlook = predict(job)
    believed = outlook.forecast
    assert 0.0 <= believed.confidence <= 1.0
    assert 0.0 <= outlook.stop_seconds < float("inf")
    assert 0.0 < outlook.speeds.at(outlook.size(3, 2)) < float("inf")
    for interval in (believed.total_steps, believed.remaining_steps, believed.remaining_seconds):
        if interval is not None:
            assert 0.0 <= interval.low <= interval.mean <= interval.high
            assert interval.mean < float("inf")


@pytest.mark.parametrize("step", [1000, 1001, 1500])
def test_a_command_beyond_its_announced_steps_is_not_forecast_to_end_now(step: int) -> None:
    spec = replace(a_spec(rule=ConvergenceRule()), announced_steps=1000)
    believed = predict(a_job("a", has=(1, 1), step=step, spec=spec, measured=samples(law(), ALL_SIZES))).forecast
    assert believed.remaining_steps is not None
    assert believed.remaining_steps.mean == step - 1000 + 1, "as many as since then"
    assert believed.remaining_steps.low < believed.remaining_steps.mean < believed.remaining_steps.high
    assert believed.remaining_seconds is not None
    assert believed.remaining_seconds.mean > 0
    assert believed.confidence < 0.1
    assert not believed.converged


def test_a_limit_bounds_what_a_command_beyond_its_announced_steps_may_take() -> None:
    spec = replace(a_spec(rule=ConvergenceRule(max_steps=1510)), announced_steps=1000)
    left = predict(a_job("a", has=(1, 1), step=1500, spec=spec)).forecast.remaining_steps
    assert left is not None
    assert left.high <= 10


def test_speeds_are_fitted_anew_only_when_what_they_are_fitted_to_is_told() -> None:
    """The very same, with all that was worked out from them: losses are reported far more often than new speeds."""
    forecaster, settings = RememberingForecaster(), Settings()
    job = trained(6.0, ConvergenceRule(loss_decrease=0.02))
    (before,) = forecaster([job], NOW, settings)
    further = replace(job, loss_steps=(*job.loss_steps, 130.0), losses=(*job.losses, 0.3), step=130)
    (later,) = forecaster([further], NOW + 10, settings)
    assert later.speeds is before.speeds
    assert later.forecast.loss_curve != before.forecast.loss_curve
    measured = replace(further, speed_samples=(*job.speed_samples, SpeedSample(3, 3, 9.0, n_steps=90, at=NOW + 10)))
    (anew,) = forecaster([measured], NOW + 20, settings)
    assert anew.speeds is not before.speeds
    assert anew.forecast.speed_model == forecast(measured, NOW + 20, settings).forecast.speed_model
