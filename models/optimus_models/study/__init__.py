"""A study of training logs: what the loss curves and epoch times of some networks say about another one.

From a table of runs (size of the network, GPU type, loss by epoch) to the figures of `optimus study`. Pure: reading
files and drawing belong to the command line.
"""

from optimus_models.study.runs import BetaFit, BetaRegression, Run, Target, first_epoch_at, fit_betas
from optimus_models.study.scaling import (
    ComputeCheck,
    MeasuredSpeed,
    MeasuredSpeeds,
    ScalingPoint,
    Setting,
    check_compute,
    measured_time_to_target,
    network_of,
    scaling,
    time_to_target,
)
from optimus_models.study.stretch import StretchedCurve, Template

__all__ = [
    "BetaFit",
    "BetaRegression",
    "ComputeCheck",
    "MeasuredSpeed",
    "MeasuredSpeeds",
    "Run",
    "ScalingPoint",
    "Setting",
    "StretchedCurve",
    "Target",
    "Template",
    "check_compute",
    "first_epoch_at",
    "fit_betas",
    "measured_time_to_target",
    "network_of",
    "scaling",
    "time_to_target",
]
