"""Policies by name. A policy decides how many workers and servers each job gets; it never sees the cluster."""

from __future__ import annotations

from optimus_scheduler.allocate.baselines.edf import EdfPolicy
from optimus_scheduler.allocate.baselines.elasticflow import ElasticFlowPolicy
from optimus_scheduler.allocate.baselines.fairness import DrfPolicy, MaxMinPolicy
from optimus_scheduler.allocate.baselines.fifo import FifoPolicy
from optimus_scheduler.allocate.baselines.optimus_paper import OptimusPaperPolicy
from optimus_scheduler.allocate.baselines.srtf import SrtfPolicy
from optimus_scheduler.allocate.baselines.tetris import TetrisPolicy
from optimus_scheduler.allocate.baselines.tiresias import TiresiasPolicy
from optimus_scheduler.allocate.optimus.policy import OptimusPolicy
from optimus_scheduler.allocate.policy import AllocationInput, Grant, Policy
from optimus_scheduler.allocate.predictable import PredictablePolicy

_ALL: tuple[Policy, ...] = (
    OptimusPolicy(),
    OptimusPaperPolicy(),
    TiresiasPolicy(),
    DrfPolicy(),
    TetrisPolicy(),
    SrtfPolicy(),
    MaxMinPolicy(),
    FifoPolicy(),
    PredictablePolicy(),
    EdfPolicy(),
    ElasticFlowPolicy(),
)
POLICIES: dict[str, Policy] = {policy.name: policy for policy in _ALL}
"""The registered policies."""


class UnknownPolicy(ValueError):
    """There is no policy of that name."""


def policy_named(name: str) -> Policy:
    """The policy registered as `name`.

    Raises:
        UnknownPolicy: there is none; the message lists those that there are.
    """
    try:
        return POLICIES[name]
    except KeyError:
        raise UnknownPolicy(f"unknown policy {name!r}; there are {', '.join(sorted(POLICIES))}") from None


__all__ = ["POLICIES", "AllocationInput", "Grant", "Policy", "UnknownPolicy", "policy_named"]
