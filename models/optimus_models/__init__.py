"""What a job will do: its loss curve, when it converges, how fast it runs with what, what a change of size costs.

Estimators in the style `Model.fit(data) -> frozen fitted value` with `predict`, `predict_interval` and `confidence`.
Pure: no I/O, no clock, no randomness. See README.md in the folder above.
"""

from optimus_models.convergence import ConvergenceRule, Prediction, Rule, convergence_step, has_converged
from optimus_models.finished_runs import FinishedRun, Prior
from optimus_models.loss_curve import LossCurve
from optimus_models.metric_curve import MetricCurve
from optimus_models.rescale import RescaleCost
from optimus_models.speed_model import SpeedModel

__all__ = [
    "ConvergenceRule",
    "FinishedRun",
    "LossCurve",
    "MetricCurve",
    "Prediction",
    "Prior",
    "RescaleCost",
    "Rule",
    "SpeedModel",
    "convergence_step",
    "has_converged",
]
