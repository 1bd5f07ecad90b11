"""The study's figures: known curves give known answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.cost import Estimate, Prices
from optimus_models.study import (
    BetaRegression,
    Run,
    Setting,
    Target,
    Template,
    check_compute,
    first_epoch_at,
    fit_betas,
    network_of,
    scaling,
    time_to_target,
)

PRICES = Prices({"V100": 2.0}, server_hour=0.5)
SETTING = Setting(128, 50_000, 1e8, 1.25e9, PRICES)


def _run(layers: int, gpu: str = "V100", *, stretch: float = 1.0, seconds: float = 10.0, n: int = 100) -> Run:
    epochs = np.arange(1.0, n + 1)
    losses = 2.0 / (0.3 * epochs / stretch + 0.7)
    return Run(layers, gpu, losses, 1.0 - losses / 4.0, np.full(n, seconds))


def test_betas_of_a_curve_of_the_papers_kind_come_back() -> None:
    run = Run(20, "K80", 3.0 * (1.0 / (0.2 * np.arange(1.0, 101) + 0.75) + 0.05), np.full(100, np.nan), np.ones(100))
    fit = fit_betas(run)
    largest = 1.0 / 0.95 + 0.05
    assert fit.scale == pytest.approx(3.0 * largest)
    assert fit.law == pytest.approx((0.2 * largest, 0.75 * largest, 0.05 / largest), rel=1e-3)
    assert fit.error < 1e-6
    assert fit.epoch_of(fit.losses(np.array([17.0]))[0]) == pytest.approx(17.0)


def test_gaps_and_runs_without_losses_are_no_obstacle() -> None:
    run = _run(20)
    holes = run._replace(losses=np.where(run.epochs % 3 == 0, np.nan, run.losses))
    assert fit_betas(holes).law == pytest.approx(fit_betas(run).law, abs=1e-3)
    assert fit_betas(run._replace(losses=np.full(100, np.nan))).law.beta0 == 0.0


def test_the_regression_finds_a_linear_dependence_on_size_and_type() -> None:
    fits = [
        fit_betas(_run(layers, gpu, stretch=1.0 / (1.0 + 0.01 * layers + 0.2 * (gpu == "V100"))))
        for layers in (20, 32, 44, 56)
        for gpu in ("K80", "V100")
    ]
    regression = BetaRegression.fit(fits)
    assert regression.predict(32, "K80").law.beta0 == pytest.approx(fits[2].law.beta0, rel=0.02)
    assert regression.predict(200, "V100").law.beta0 > fits[-1].law.beta0
    assert regression.predict(20, "unheard of").law == regression.predict(20, "K80").law


def test_a_target_accuracy_becomes_the_loss_that_went_with_it() -> None:
    target = Target.of([_run(20), _run(32, stretch=2.0)], accuracy=0.9, loss=None)
    assert target.loss == pytest.approx(0.4, rel=0.05)
    assert first_epoch_at(_run(20), target) == pytest.approx((2.0 / 0.4 - 0.7) / 0.3, abs=1)
    assert first_epoch_at(_run(20, n=3), target) is None


def test_without_accuracies_a_loss_is_the_target() -> None:
    run = _run(20)._replace(accuracies=np.full(100, np.nan))
    assert Target.of([run], accuracy=0.9, loss=None) == Target(pytest.approx(0.2), None)  # type: ignore[arg-type]
    assert Target.of([run], accuracy=0.9, loss=0.5) == Target(0.5, None)


def test_the_first_epochs_tell_how_much_a_curve_is_stretched() -> None:
    template = Template.of([_run(20), _run(32), _run(44)])
    slow = _run(50, stretch=2.5)
    blind, seeing = template.given(slow.losses[:0]), template.given(slow.losses[:5])
    assert blind.stretch == pytest.approx(1.0, abs=0.05)
    assert 1.4 < seeing.stretch < 2.5
    ends = [curve.epoch_of(0.2) for curve in (blind, seeing)]
    true = (2.0 / 0.2 - 0.7) / 0.3 * 2.5
    assert abs(ends[1].mean - true) < abs(ends[0].mean - true)
    assert ends[0].high / ends[0].low > 2 * ends[1].high / ends[1].low
    low, high = seeing.interval(slow.epochs)
    assert np.all(low <= high)


def test_before_the_first_epoch_the_stretch_follows_size() -> None:
    template = Template.of([_run(10, stretch=3.0), _run(20, stretch=2.0), _run(40, stretch=1.3)])
    nothing = np.zeros(0)
    small, large = template.given(nothing, 10), template.given(nothing, 80)
    assert large.stretch < small.stretch
    assert template.given(nothing).stretch == pytest.approx(1.0, abs=0.05)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6))
def test_any_first_epochs_leave_an_ordered_prediction(losses: list[float]) -> None:
    curve = Template.of([_run(20), _run(32)]).given(np.array(losses))
    at = curve.epoch_of(0.3)
    assert at.low <= at.mean * (1 + 1e-6) or not losses
    assert at.low <= at.high


def test_known_depths_have_a_network_and_others_do_not() -> None:
    eighteen, twenty = network_of(18), network_of(20)
    assert eighteen is not None
    assert twenty is not None
    assert eighteen.parameters > 11e6
    assert twenty.parameters == 269_722
    assert network_of(21) is None
    assert network_of(2) is None


def test_calibration_finds_what_made_the_times() -> None:
    """Epochs that are nothing but launching kernels: the data sheet is far off, the other networks are not."""
    runs = []
    for layers in (20, 32, 44, 56):
        cost = network_of(layers)
        assert cost is not None
        runs.append(_run(layers, seconds=0.05 * len(cost.layers)))
    for check in check_compute([*runs, _run(20, "cpu"), _run(21)], batch_size=128, examples=50_000):
        by_data_sheet, calibrated = check.errors()
        assert calibrated == pytest.approx(0.0, abs=1e-6)
        assert abs(by_data_sheet) > 0.05


def test_more_servers_help_until_there_are_as_many_as_workers() -> None:
    two, four, eight = (
        [o.seconds.mean for o in time_to_target(SETTING, Estimate.exactly(10.0), 0.1, "V100", [1, 4, 8], servers)]
        for servers in (2, 4, 8)
    )
    assert two[0] == four[0]
    assert two[1] > four[1] == eight[1]
    assert four[2] > eight[2]


def test_uncertain_epochs_give_uncertain_time_and_cost() -> None:
    (only,) = time_to_target(SETTING, Estimate(10.0, 5.0, 20.0), 0.1, "V100", [2], 2)
    assert only.seconds.high / only.seconds.mean == pytest.approx(2.0)
    assert only.cost.mean == pytest.approx(only.seconds.mean / 3600 * (2 * 2.0 + 2 * 0.5))


def test_weak_scaling_is_more_efficient_than_strong() -> None:
    strong, weak = (scaling(SETTING, 0.1, "V100", [1, 2, 4, 8, 16], 4, kind) for kind in ("strong", "weak"))
    assert all(s.efficiency <= w.efficiency + 1e-12 for s, w in zip(strong, weak, strict=True))
    assert all(0 < point.efficiency < 1 for point in weak)
    assert weak[3].examples_per_second > strong[3].examples_per_second
    assert strong[0].epoch_seconds == pytest.approx(weak[0].epoch_seconds)
