"""What a job will do: its loss and metrics, when it converges, how fast it runs with what, what that costs.

Estimators in the style `Model.fit(data) -> frozen fitted value` with `predict`, `predict_interval` and `confidence`.
Pure: no I/O, no clock, no randomness. Everything a user needs is here; README.md in the folder above shows its use.
"""

from optimus_models.analytic import (
    CPU_CORE,
    DEVICES,
    ColdStart,
    Device,
    Network,
    NetworkCost,
    Scheme,
    count,
)
from optimus_models.analytic.description import cost_of_description, network_from_description
from optimus_models.analytic.networks import NETWORKS
from optimus_models.convergence import Rule, converged_epoch, convergence_step, fitted_end_epoch, has_converged
from optimus_models.cost import (
    Allocation,
    Estimate,
    NothingFits,
    Prices,
    TimeAndCost,
    UnknownPrice,
    cheapest_before,
    fastest_under,
    times_and_costs,
    worth_considering,
)
from optimus_models.gpu_types import GpuTypeModel, JobFeatures, TypeSpeed
from optimus_models.history import LossBuckets, LossHistory
from optimus_models.loss.curve import LossCurve, MetricCurve, PaperLossCurve
from optimus_models.loss.ends import Prediction
from optimus_models.loss.finished_runs import FinishedRun, Prior
from optimus_models.loss.rate_schedule import RateSchedule
from optimus_models.rescale import RescaleCost
from optimus_models.speed import SpeedLaw
from optimus_models.speed.batch import BatchSpeed
from optimus_models.speed.goodput import ElasticBatch, Goodput, NoiseScale
from optimus_models.speed.ring import RingSamples, RingSpeed
from optimus_models.speed.scaling import ScalingCurve, Unshared
from optimus_models.speed.servers import PaperSpeedModel, SpeedModel

__all__ = [
    "CPU_CORE",
    "DEVICES",
    "NETWORKS",
    "Allocation",
    "BatchSpeed",
    "ColdStart",
    "Device",
    "ElasticBatch",
    "Estimate",
    "FinishedRun",
    "Goodput",
    "GpuTypeModel",
    "JobFeatures",
    "LossBuckets",
    "LossCurve",
    "LossHistory",
    "MetricCurve",
    "Network",
    "NetworkCost",
    "NoiseScale",
    "NothingFits",
    "PaperLossCurve",
    "PaperSpeedModel",
    "Prediction",
    "Prices",
    "Prior",
    "RateSchedule",
    "RescaleCost",
    "RingSamples",
    "RingSpeed",
    "Rule",
    "ScalingCurve",
    "Scheme",
    "SpeedLaw",
    "SpeedModel",
    "TimeAndCost",
    "TypeSpeed",
    "UnknownPrice",
    "Unshared",
    "cheapest_before",
    "converged_epoch",
    "convergence_step",
    "cost_of_description",
    "count",
    "fastest_under",
    "fitted_end_epoch",
    "has_converged",
    "network_from_description",
    "times_and_costs",
    "worth_considering",
]
