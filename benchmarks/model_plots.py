"""Draw the pictures of docs/models.md and its studies from measurements.

    python -m benchmarks.model_plots --data FOLDER [--out docs/images] [--draws 200]

The folder holds curves.csv and speed_ps_sync.csv (see `benchmarks.loss_curves` and `benchmarks.speed_models`). The
picture of one curve shows a made-up run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # before pyplot is loaded: no screen is needed

import matplotlib.pyplot as plt
import numpy as np
from benchmarks import loss_curves, speed_drift, speed_models, training_logs
from matplotlib.axes import Axes

from optimus_models import FinishedRun, LossCurve, Prior
from optimus_models.loss.curve import PaperLossCurve

COLOURS = {
    "paper": "tab:orange",
    "ours": "tab:blue",
    "ours + runs": "tab:green",
    "last value": "tab:gray",
    "nearest": "tab:gray",
}
DRIFT_COLOURS = {"kept": "tab:gray", "faded 300 s": "tab:orange", "corrected": "tab:blue"}
_DPI = 90


def draw_loss_errors(data: Path, out: Path) -> None:
    """Error of the predicted final loss after each part of the run: median and 90th percentile over curves."""
    curves = training_logs.usable_curves(data / "curves.csv")
    models = {**loss_curves.MODELS, loss_curves.WITH_RUNS: loss_curves.ours_with(loss_curves.known_runs(curves), None)}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    parts = [100 * prefix for prefix in loss_curves.PREFIXES]
    for name, fit in models.items():
        summaries = [score.summary() for score in loss_curves.evaluate(fit, curves).values()]
        for axis, column in zip(axes, ("final_median", "final_p90"), strict=True):
            axis.plot(parts, [float(s[column] or 0.0) for s in summaries], "o-", color=COLOURS[name], label=name)
    for axis, title in zip(axes, ("median over curves", "90th percentile"), strict=True):
        axis.set(title=title, xlabel="part of the run seen, %", ylabel="error of the final loss, %", ylim=(0, None))
    axes[0].legend(frameon=False)
    figure.savefig(out / "loss-errors.png", dpi=_DPI)
    plt.close(figure)


def draw_loss_example(out: Path) -> None:
    """One made-up run whose learning rate is lowered at step 60, seen up to step 40."""
    steps, seen = np.arange(1.0, 101.0), 40
    random = np.random.default_rng(3)

    def run(speed: float, floor: float) -> np.ndarray:
        falling = 2.0 / (speed * steps + 1.0) + floor
        return np.asarray(falling * np.where(steps > 60, 0.55, 1.0) * np.exp(random.normal(0.0, 0.015, 100)))

    earlier, present = [run(0.08, 0.5), run(0.12, 0.4), run(0.1, 0.35)], run(0.1, 0.45)
    prior = Prior.of(FinishedRun.of(steps, losses, same_project=True) for losses in earlier)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for axis, history in zip(axes, (None, prior), strict=True):
        curve = LossCurve.fit(steps[:seen], present[:seen], history=history)
        name = "ours" if history is None else "ours + runs"
        _draw_forecast(axis, curve, name, steps[seen:])
        axis.plot(steps[:seen], present[:seen], "k.", markersize=3, label="seen")
        axis.plot(steps[seen:], present[seen:], ".", color="0.65", markersize=3, label="what happens")
        axis.set(xlabel="step", title="nothing else known" if history is None else "three earlier runs known")
    law = PaperLossCurve.fit(steps[:seen], present[:seen])
    axes[0].plot(steps[seen:], law.predict(steps[seen:]), color=COLOURS["paper"], label="paper (Eq. 1)")
    for losses in earlier:
        axes[1].plot(steps, losses, color="0.85", linewidth=1, zorder=0)
    axes[0].set(ylabel="loss", ylim=(0, None))
    for axis in axes:
        axis.legend(frameon=False)
    figure.savefig(out / "loss-example.png", dpi=_DPI)
    plt.close(figure)


def _draw_forecast(axis: Axes, curve: LossCurve, name: str, ahead: np.ndarray) -> None:
    low, high = curve.predict_interval(ahead)
    axis.fill_between(ahead, low, high, color=COLOURS[name], alpha=0.2, linewidth=0, label="80 % interval")
    axis.plot(ahead, curve.predict(ahead), color=COLOURS[name], label=name)


def draw_speed_errors(data: Path, out: Path, n_draws: int) -> None:
    """Error of predicted speeds by number of measured sizes, and after a job became twice as slow."""
    jobs = speed_models.load_measurements(data / "speed_ps_sync.csv")
    tallies = speed_models.evaluate(jobs, n_draws)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    counts = [n for n in speed_models.SAMPLES if n > 1]
    for name in ("paper", "ours", "nearest"):
        for design, style in (("random", "o--"), ("chosen", "o-")):
            errors = [float(str(tallies[design, name, n].summary()["mean_error"])) for n in counts]
            axes[0].plot(counts, errors, style, color=COLOURS[name], label=f"{name}, {design}")
    axes[0].set(title="measured sizes", xlabel="sizes measured", ylabel="error of predicted speed, %", ylim=(0, 50))
    axes[0].legend(frameon=False, fontsize=8)
    rows = [row for row in speed_drift.evaluate(jobs, max(n_draws // 4, 1)) if row["factor"] == 2.0]
    for name, colour in DRIFT_COLOURS.items():
        axes[1].plot([row["since"] for row in rows], [row[name] for row in rows], "o-", color=colour, label=name)
    axes[1].set(title="a card is shared: twice as slow", xlabel="measurements since", ylim=(0, None))
    axes[1].legend(frameon=False, title="old measurements")
    figure.savefig(out / "speed-errors.png", dpi=_DPI)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the measured data")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--draws", type=int, default=200, help="as in benchmarks.speed_models")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    draw_loss_errors(options.data, options.out)
    draw_loss_example(options.out)
    draw_speed_errors(options.data, options.out, options.draws)
    return 0


if __name__ == "__main__":
    sys.exit(main())
