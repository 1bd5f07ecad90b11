"""Small traces, and the measured data where `OPTIMUS_DATA` says it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.truth.truth import AllReduceLaw, LossLaw, ParameterServerLaw, ParametricTruth

GPU = Resources(gpus={"gpu": 1})
CORE = Resources(1.0, 2**28)

MakeJob = Callable[..., TraceJob]
MakeTrace = Callable[..., Trace]


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with measured data that is not part of the project."""
    folder = os.environ.get("OPTIMUS_DATA")
    if not folder:
        pytest.skip("OPTIMUS_DATA is not set: it names the folder with the measured data")
    return Path(folder)


@pytest.fixture
def ring_job() -> MakeJob:
    """An all-reduce job; by default 100 s long on one GPU."""

    def make(name: str, at: float = 0.0, steps: float = 100.0, most: int = 4, requested: int = 2) -> TraceJob:
        spec = JobSpec(
            worker=TaskDemand(GPU, 1, most),
            server=TaskDemand(Resources(), 0, 0),
            convergence=ConvergenceRule(max_steps=int(steps)),
            architecture=Architecture.ALLREDUCE,
            global_batch_size=32,
            requested_workers=requested,
            requested_servers=0,
        )
        return TraceJob(name, at, spec, ParametricTruth(steps, AllReduceLaw(1.0, 0.1)))

    return make


@pytest.fixture
def server_job() -> MakeJob:
    """A parameter-server job with a loss curve; by default 130 s long at 1 + 1."""

    def make(name: str, at: float = 0.0, steps: float = 100.0, most: int = 4) -> TraceJob:
        spec = JobSpec(
            worker=TaskDemand(CORE, 1, most),
            server=TaskDemand(CORE, 1, most),
            convergence=ConvergenceRule(loss_decrease=0.01, max_epochs=50.0),
            global_batch_size=32,
            requested_workers=2,
            requested_servers=2,
        )
        law = ParameterServerLaw((1.0 / 32, 0.1, 0.15, 0.02, 0.03), 32.0)
        return TraceJob(name, at, spec, ParametricTruth(steps, law, LossLaw(0.5, 1.0, 0.1), epoch_steps=10.0))

    return make


@pytest.fixture
def ring_trace(ring_job: MakeJob) -> MakeTrace:
    """Jobs of growing length, ten seconds apart, on 2 nodes of 4 GPUs."""

    def make(n_jobs: int = 6, n_nodes: int = 2) -> Trace:
        jobs = [ring_job(f"job-{i}", at=10.0 * i, steps=200.0 * (i + 1)) for i in range(n_jobs)]
        return Trace("rings", equal_nodes(n_nodes, Resources(gpus={"gpu": 4})), in_order(jobs))

    return make


@pytest.fixture
def server_trace(server_job: MakeJob) -> MakeTrace:
    """Jobs of growing length, ten seconds apart, on 2 nodes of 4 cores."""

    def make(n_jobs: int = 4, n_nodes: int = 2) -> Trace:
        jobs = [server_job(f"job-{i}", at=10.0 * i, steps=200.0 * (i + 1)) for i in range(n_jobs)]
        return Trace("servers", equal_nodes(n_nodes, Resources(4.0, 2**32)), in_order(jobs))

    return make
