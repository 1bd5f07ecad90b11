from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models import (
    FinishedRun,
    LossCurve,
    MetricCurve,
    Prediction,
    Prior,
    Rule,
    converged_epoch,
    convergence_step,
    has_converged,
)
from optimus_models.convergence import whole_steps
from optimus_models.history import LossBuckets
from optimus_models.loss.curve import PaperLossCurve

MakeLosses = Callable[..., Any]
EPOCH = 10.0


def fitted(losses: Any, n: int) -> LossCurve:
    return LossCurve.fit(np.arange(1.0, n + 1), losses[:n])


@pytest.fixture
def losses(make_losses: MakeLosses) -> Any:
    return make_losses(np.arange(1.0, 2001.0), noise=0.002)


def true_end(rule: Rule) -> float:
    """Where the noise-free curve of `make_losses` meets the decrease rule, by stepping through its epochs."""
    epochs = np.arange(1, 500)
    loss = 1.0 / (0.05 * epochs * EPOCH + 1.1) + 0.15
    reference = loss[:-1] if rule.relative else 1.0
    small = loss[:-1] - loss[1:] < (rule.loss_decrease or 0.0) * reference
    return float((np.argmax(small) + 1 + rule.patience_epochs) * EPOCH)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("delta", [0.01, 0.03])
def test_the_decrease_rule_is_predicted(losses: Any, delta: float, relative: bool) -> None:
    rule = Rule(loss_decrease=delta, relative=relative)
    predicted = convergence_step(fitted(losses, 100), rule, steps_per_epoch=EPOCH, now_step=100)
    assert predicted is not None
    assert predicted.rule == "loss_decrease"
    assert predicted.low <= max(true_end(rule), 100) <= predicted.high
    assert predicted.mean == pytest.approx(true_end(rule), rel=0.6)


def test_the_decrease_rule_is_predicted_well_when_the_end_is_near(losses: Any) -> None:
    rule = Rule(loss_decrease=0.01)
    predicted = convergence_step(fitted(losses, 250), rule, steps_per_epoch=EPOCH, now_step=250)
    assert predicted is not None
    assert predicted.mean == pytest.approx(true_end(rule), rel=0.1)


@pytest.mark.parametrize("relative", [True, False])
def test_the_papers_curve_finds_the_end_of_its_own_kind_of_curve(losses: Any, relative: bool) -> None:
    rule = Rule(loss_decrease=0.01, relative=relative)
    curve = PaperLossCurve.fit(np.arange(1.0, 101.0), losses[:100])
    predicted = convergence_step(curve, rule, steps_per_epoch=EPOCH, now_step=100)
    assert predicted is not None
    assert predicted.mean == pytest.approx(true_end(rule), rel=0.15)


def test_the_decrease_rule_fires_where_it_was_predicted(losses: Any) -> None:
    rule = Rule(loss_decrease=0.03)
    end = int(true_end(rule))
    before, after = fitted(losses, end - 60), fitted(losses, end + 60)
    assert has_converged(before, rule, steps_per_epoch=EPOCH, now_step=end - 60) is None
    assert has_converged(after, rule, steps_per_epoch=EPOCH, now_step=end + 60) == "loss_decrease"


def test_noise_alone_does_not_fire_the_rule(make_losses: MakeLosses) -> None:
    steps = np.arange(1.0, 61.0)
    noisy = make_losses(steps, noise=0.05)
    assert has_converged(LossCurve.fit(steps, noisy), Rule(0.01), steps_per_epoch=EPOCH, now_step=60) is None


def test_a_young_job_never_counts_as_converged() -> None:
    flat = LossCurve.fit([1, 2, 3], [1.0, 1.0, 1.0])
    assert has_converged(flat, Rule(loss_decrease=0.01), steps_per_epoch=1, now_step=3) is None


def test_a_steep_beginning_in_one_wide_bucket_is_no_noise() -> None:
    """As of a perceptron on digits: most of the fall is within the first of 69 buckets of 32 steps."""
    steps = np.arange(2200)
    buckets = LossBuckets()
    buckets.add_many(steps, np.minimum(2.3, 0.118 * (47.5 / (steps + 1.0)) ** 1.3))
    curve = LossCurve.fit(*buckets.arrays())
    assert len(buckets) < 70
    assert curve.confidence > 0.5
    assert has_converged(curve, Rule(loss_decrease=0.01), steps_per_epoch=11, now_step=2200) == "loss_decrease"


AT_ONCE = np.arange(1.0, 61.0)


@pytest.mark.parametrize(
    "losses",
    [
        np.full(60, 2.3),
        2.3 + 0.01 * np.cos(7.0 * AT_ONCE),
        1.0 + 0.05 * AT_ONCE,
        1.0 / AT_ONCE + 2.0 * (AT_ONCE > 20),
        np.where(AT_ONCE < 20, 1.0 / AT_ONCE, 0.05 * 1.2 ** (AT_ONCE - 20)),
    ],
    ids=["flat", "first plateau", "rising", "a jump up", "diverging"],
)
def test_a_job_whose_loss_has_not_fallen_is_never_converged(losses: Any) -> None:
    rule = Rule(loss_decrease=0.01)
    for n in range(30, 61):
        curve = LossCurve.fit(AT_ONCE[:n], losses[:n])
        assert has_converged(curve, rule, steps_per_epoch=1.0, now_step=float(n)) is None
        assert convergence_step(curve, rule, steps_per_epoch=1.0, now_step=float(n)) is None


def ends(lengths: list[float]) -> Prior:
    """Runs like `losses` of the fixture, each ended by the rule after so many steps."""
    steps = np.arange(1.0, 401.0)
    curve = 1.0 / (0.05 * steps + 1.1) + 0.15
    return Prior.of(FinishedRun.of(steps, curve, same_project=True, end_step=length) for length in lengths)


def test_ends_of_runs_that_were_alike_decide(losses: Any) -> None:
    rule = Rule(loss_decrease=0.01)
    curve = LossCurve.fit(np.arange(1.0, 61.0), losses[:60], history=ends([300.0, 320.0, 340.0]))
    predicted = convergence_step(curve, rule, steps_per_epoch=EPOCH, now_step=60)
    assert predicted is not None
    assert predicted.mean == pytest.approx(320.0, rel=0.05)
    assert predicted.low < 300 < 340 < predicted.high < 450


@pytest.mark.parametrize("step", [60, 200, 300])
def test_runs_that_ended_close_together_tell_the_end_the_more_surely_the_more_there_are(losses: Any, step: int) -> None:
    def width(lengths: list[float]) -> float:
        curve = LossCurve.fit(np.arange(1.0, step + 1.0), losses[:step], history=ends(lengths))
        predicted = convergence_step(curve, Rule(loss_decrease=0.01), steps_per_epoch=EPOCH, now_step=step)
        assert predicted is not None
        return float(np.log(predicted.high / predicted.low))

    few, more, apart = width([320.0, 325.0]), width([320.0, 325.0] * 4), width([200.0, 250.0, 400.0, 512.0] * 2)
    assert more < 0.85 * few
    assert apart > few


def test_just_before_the_end_of_all_runs_a_job_is_not_said_to_go_on_for_twice_as_long(losses: Any) -> None:
    """It is known not to have ended before, so the doubt about the ends of runs alone makes what is left longer."""
    curve = LossCurve.fit(np.arange(1.0, 301.0), losses[:300], history=ends([310.0, 318.0, 320.0, 325.0]))
    predicted = convergence_step(curve, Rule(loss_decrease=0.01), steps_per_epoch=EPOCH, now_step=300)
    assert predicted is not None
    assert predicted.mean - 300.0 < 1.5 * 20.0


def test_a_run_that_ended_sooner_is_no_longer_believed(losses: Any) -> None:
    rule = Rule(loss_decrease=0.01)
    steps = np.arange(1.0, 251.0)
    alone = LossCurve.fit(steps, losses[:250])
    beside = LossCurve.fit(steps, losses[:250], history=ends([100.0]))
    expected, predicted = (
        convergence_step(curve, rule, steps_per_epoch=EPOCH, now_step=250) for curve in (alone, beside)
    )
    assert predicted is not None
    assert expected is not None
    assert predicted[:3] == pytest.approx(expected[:3])


@pytest.mark.parametrize("delta", [0.01, 0.03])
def test_a_run_just_like_the_job_tells_its_end(losses: Any, delta: float) -> None:
    """Also where its end has to be found: it was not this rule that ended it."""
    rule, steps = Rule(loss_decrease=delta), np.arange(1.0, 401.0)
    end = next(
        n
        for n in range(20, 401)
        if has_converged(fitted(losses, n), rule, steps_per_epoch=EPOCH, now_step=float(n)) is not None
    )
    history = Prior.of([FinishedRun.of(steps, losses[:400], same_project=True)])
    curve = LossCurve.fit(steps[: end // 2], losses[: end // 2], history=history)
    predicted = convergence_step(curve, rule, steps_per_epoch=EPOCH, now_step=float(end // 2))
    assert predicted is not None
    assert predicted.mean == pytest.approx(end, rel=0.05)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(10.0, 1e5), min_size=1, max_size=6), st.integers(5, 60), st.randoms())
def test_the_order_of_runs_does_not_matter(lengths: list[float], n: int, random: Any) -> None:
    losses = 1.0 / (0.05 * np.arange(1.0, n + 1) + 1.1) + 0.15
    shuffled = random.sample(lengths, len(lengths))
    one, other = (
        convergence_step(
            LossCurve.fit(np.arange(1.0, n + 1), losses, history=ends(order)),
            Rule(loss_decrease=0.01),
            steps_per_epoch=EPOCH,
            now_step=float(n),
        )
        for order in (lengths, shuffled)
    )
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert n <= one.low <= one.mean <= one.high
        assert one[:3] == pytest.approx(other[:3])


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_the_true_end_is_where_the_live_rule_first_can_fire(patience: int) -> None:
    rule, losses = Rule(loss_decrease=0.2, patience_epochs=patience), [1.0, 0.7, 0.65, 0.61, 0.6, 0.6, 0.6]
    assert converged_epoch(losses, rule) == patience + 1
    curve = LossCurve.fit(
        np.linspace(0, patience + 1, 20), np.interp(np.linspace(0, patience + 1, 20), range(7), losses)
    )
    fires = has_converged(curve, rule, steps_per_epoch=1.0, now_step=patience + 1)
    assert fires == "loss_decrease"
    assert has_converged(curve, rule, steps_per_epoch=1.0, now_step=patience + 0.9) is None


def test_true_losses_that_do_not_fall_have_no_end() -> None:
    assert converged_epoch([1.0] * 20, Rule(loss_decrease=0.01)) is None
    assert converged_epoch(np.linspace(1.0, 2.0, 20), Rule(loss_decrease=0.01)) is None


def test_target_loss_is_predicted_and_fires(losses: Any) -> None:
    rule = Rule(target_loss=0.3)
    predicted = convergence_step(fitted(losses, 60), rule, steps_per_epoch=None, now_step=60)
    assert predicted is not None
    assert predicted.rule == "target_loss"
    assert predicted.mean == pytest.approx((1 / 0.15 - 1.1) / 0.05, rel=0.25)
    assert has_converged(fitted(losses, 200), rule, steps_per_epoch=None, now_step=200) == "target_loss"
    assert has_converged(fitted(losses, 60), rule, steps_per_epoch=None, now_step=60) is None


def test_a_target_out_of_reach_gives_no_prediction(losses: Any) -> None:
    assert convergence_step(fitted(losses, 300), Rule(target_loss=0.01), steps_per_epoch=EPOCH, now_step=300) is None


@pytest.mark.parametrize(
    ("rule", "name", "total"),
    [
        (Rule(max_steps=500), "max_steps", 500.0),
        (Rule(max_epochs=20), "max_epochs", 200.0),
        (Rule(max_seconds=60.0), "max_seconds", 150.0),
        (Rule(max_steps=500, max_epochs=20), "max_epochs", 200.0),
        (Rule(target_loss=0.01, max_steps=500), "max_steps", 500.0),
    ],
)
def test_fixed_limits_are_taken_at_face_value(losses: Any, rule: Rule, name: str, total: float) -> None:
    predicted = convergence_step(
        fitted(losses, 50), rule, steps_per_epoch=EPOCH, now_step=50, elapsed_seconds=10.0, steps_per_second=2.0
    )
    assert predicted == Prediction(total, total, total, name)


@pytest.mark.parametrize(
    ("rule", "name"),
    [(Rule(max_steps=50), "max_steps"), (Rule(max_epochs=5), "max_epochs"), (Rule(max_seconds=9.0), "max_seconds")],
)
def test_fixed_limits_fire_without_a_curve(rule: Rule, name: str) -> None:
    unknown = LossCurve.fit([], [])
    assert has_converged(unknown, rule, steps_per_epoch=EPOCH, now_step=50, elapsed_seconds=10) == name
    assert has_converged(unknown, rule, steps_per_epoch=EPOCH, now_step=49, elapsed_seconds=8) is None


def accuracy(n: int) -> MetricCurve:
    """The first `n` steps of an accuracy that rises from 0 towards 0.9."""
    steps = np.arange(1.0, n + 1)
    return MetricCurve.fit(steps, 0.9 * (1.0 - 1.0 / (0.05 * steps + 1.0)))


def test_a_target_metric_is_predicted_and_fires(losses: Any) -> None:
    rule = Rule(target_metric=0.75)  # reached after 100 steps
    predicted = convergence_step(fitted(losses, 40), rule, steps_per_epoch=None, now_step=40, metric=accuracy(40))
    assert predicted is not None
    assert predicted.rule == "target_metric"
    assert predicted.low <= 100 <= predicted.high
    assert predicted.mean == pytest.approx(100, rel=0.25)
    fires = {
        n: has_converged(fitted(losses, n), rule, steps_per_epoch=None, now_step=n, metric=accuracy(n))
        for n in (60, 150)
    }
    assert fires == {60: None, 150: "target_metric"}


def test_a_target_metric_waits_for_its_first_value(losses: Any) -> None:
    rule = Rule(target_metric=0.1)
    nothing = MetricCurve.fit([], [])
    assert has_converged(fitted(losses, 50), rule, steps_per_epoch=None, now_step=50, metric=nothing) is None
    assert convergence_step(fitted(losses, 50), rule, steps_per_epoch=None, now_step=50, metric=nothing) is None


def test_the_budget_ends_the_job_when_it_is_spent(losses: Any) -> None:
    rule, curve = Rule(max_cost=20.0), fitted(losses, 50)
    predicted = convergence_step(
        curve, rule, steps_per_epoch=None, now_step=50, steps_per_second=2.0, spent=5.0, cost_per_second=0.1
    )
    assert predicted == Prediction(350.0, 350.0, 350.0, "max_cost")
    assert convergence_step(curve, rule, steps_per_epoch=None, now_step=50, spent=5.0, cost_per_second=0.1) is None
    assert has_converged(curve, rule, steps_per_epoch=None, now_step=50, spent=19.0) is None
    assert has_converged(curve, rule, steps_per_epoch=None, now_step=50, spent=20.0) == "max_cost"


def test_whichever_comes_first_is_named(losses: Any) -> None:
    rule = Rule(loss_decrease=0.03, max_steps=2000)
    predicted = convergence_step(fitted(losses, 100), rule, steps_per_epoch=EPOCH, now_step=100)
    assert predicted is not None
    assert predicted.rule == "loss_decrease"


@pytest.mark.parametrize(
    "rule", [Rule(target_loss=0.01, max_steps=400), Rule(loss_decrease=1e-4, max_steps=400)], ids=["target", "decrease"]
)
def test_a_limit_is_as_sure_as_the_curve_that_says_it_ends_the_job(losses: Any, rule: Rule) -> None:
    """Another part of the rule may still hold before."""
    curve = fitted(losses, 60)
    found = [
        convergence_step(replace(curve, confidence=sure), rule, steps_per_epoch=EPOCH, now_step=60)
        for sure in (0.2, 0.5, 0.8, 0.95)
    ]
    assert {(each.mean, each.high, each.rule) for each in found if each} == {(400.0, 400.0, "max_steps")}
    lows = [each.low for each in found if each]
    assert 60 < lows[0] < lows[1] < lows[2] < lows[3] == 400.0
    assert lows[0] == pytest.approx(60 * (400 / 60) ** (0.1 / 0.8), rel=0.01)
    alone = convergence_step(replace(curve, confidence=0.2), Rule(max_steps=400), steps_per_epoch=EPOCH, now_step=60)
    assert alone == Prediction(400.0, 400.0, 400.0, "max_steps")


def test_without_a_curve_and_a_limit_nothing_can_be_said() -> None:
    unknown = LossCurve.fit([], [])
    assert convergence_step(unknown, Rule(loss_decrease=0.01), steps_per_epoch=EPOCH, now_step=0) is None


@settings(max_examples=150)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40),
    st.floats(0.001, 0.2),
    st.one_of(st.none(), st.floats(0.5, 20)),
    st.booleans(),
)
def test_any_history_gives_an_ordered_prediction_or_none(
    losses: list[float], delta: float, epoch: float | None, relative: bool
) -> None:
    curve = LossCurve.fit(np.arange(len(losses)), losses)
    rule = Rule(loss_decrease=delta, relative=relative, target_loss=0.5)
    now = float(len(losses))
    predicted = convergence_step(curve, rule, steps_per_epoch=epoch, now_step=now)
    assert has_converged(curve, rule, steps_per_epoch=epoch, now_step=now) in (None, "loss_decrease", "target_loss")
    if predicted is not None:
        assert now <= predicted.low <= predicted.mean <= predicted.high < np.inf


@pytest.mark.parametrize(("part", "least"), [(0.15, 0.45), (0.2, 0.5), (0.3, 0.5), (0.4, 0.5), (0.5, 0.5)])
def test_a_fast_fall_is_not_expected_to_end_where_one_average_takes_over_from_the_other(
    part: float, least: float
) -> None:
    """Losses of a small perceptron fall by such a power; 1.8 times the present step was the end, wherever it was."""
    steps, epoch = np.arange(0.0, 3000.0), 12.0
    true_losses = (1.0 + steps / 60.0) ** -1.7
    rule = Rule(loss_decrease=0.01)
    ended = converged_epoch(true_losses[:: int(epoch)], rule)
    assert ended is not None
    n = int(part * ended * epoch)
    noisy = true_losses[:n] * np.exp(0.1 * np.random.default_rng(1).standard_normal(n))
    predicted = convergence_step(LossCurve.fit(steps[:n], noisy), rule, steps_per_epoch=epoch, now_step=float(n))
    assert predicted is not None
    assert least <= predicted.mean / (ended * epoch) <= 2.0


@pytest.mark.parametrize("exponent", [1.3, 1.6])
@pytest.mark.parametrize("part", [0.5, 0.75])
def test_a_loss_that_falls_towards_zero_as_a_steep_power_law_ends_where_it_is_said_to(
    exponent: float, part: float
) -> None:
    """Steeper than the averaged curves: these lie above the recent losses, and are moved through them."""
    epochs = np.arange(1.0, 401.0)
    losses = (1.0 + epochs) ** -exponent * np.exp(np.random.default_rng(0).normal(0.0, 0.02, len(epochs)))
    rule = Rule(loss_decrease=0.01)
    end = next(n for n in range(100, 400) if has_converged(fitted(losses, n), rule, steps_per_epoch=1.0, now_step=n))
    seen = round(part * end)
    predicted = convergence_step(fitted(losses, seen), rule, steps_per_epoch=1.0, now_step=seen)
    assert predicted is not None
    assert predicted.low <= end <= predicted.high
    assert predicted.mean == pytest.approx(end, rel=0.17)


@pytest.mark.parametrize(("epochs", "steps"), [(16.0, 719.0), (2.0, 90.0), (1.0, 45.0)])
def test_a_number_of_epochs_takes_a_whole_number_of_steps(epochs: float, steps: float) -> None:
    assert whole_steps(epochs * 1437 / 32) == steps
    assert whole_steps(3 * 0.1 / 0.1) == 3.0
    assert whole_steps(math.inf) == math.inf


def slow_start(seed: int) -> tuple[Any, Any]:
    """Noisy losses that hardly fall at first, by more than 5 % an epoch from step 25 on, and are low after step 130."""
    steps = np.arange(2.0, 600.0, 2.0)
    falling = 42.0 / (1.0 + np.exp((steps - 70.0) / 20.0)) + 1.0
    return steps, falling * (1.0 + 0.1 * np.random.default_rng(seed).standard_normal(len(steps))).clip(0.01)


def test_a_fall_that_noise_may_be_ends_no_job() -> None:
    """Two standard errors come by chance in one of many looks: half of these jobs ended before they had begun."""
    rule, early = Rule(loss_decrease=0.05), 0
    for seed in range(20):
        steps, losses = slow_start(seed)
        early += any(
            has_converged(LossCurve.fit(steps[:n], losses[:n]), rule, steps_per_epoch=EPOCH, now_step=steps[n - 1])
            for n in range(5, 35)
        )
    assert early <= 6
    whole = LossCurve.fit(*slow_start(0))
    assert has_converged(whole, rule, steps_per_epoch=EPOCH, now_step=600.0) == "loss_decrease"


def test_before_the_own_fall_is_sure_ended_runs_tell_the_end() -> None:
    steps, losses = slow_start(1)
    before = Prior.of([FinishedRun.of(*slow_start(2), same_project=True, end_step=370.0)])
    curve = LossCurve.fit(steps[:10], losses[:10], history=before)
    assert curve.fall <= 5.0 * curve.fall_error
    found = convergence_step(curve, Rule(loss_decrease=0.05), steps_per_epoch=EPOCH, now_step=steps[9])
    assert found is not None
    assert found.mean == pytest.approx(370.0, rel=0.1)
