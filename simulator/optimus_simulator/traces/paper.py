"""The workload of the Optimus paper (section 6.1): nine models with parameter servers on 13 machines.

What the paper does not state is chosen here: 60 jobs as in its public generator, tasks of 2.5 cores, step times with
the proportions that it measured for ResNet-50 (table 2), transfer growing with the model's size and depending on the
placement, scaled so that the run up to convergence takes at 1 + 1 what it takes on one GPU, two hours at most.

References: Peng et al., EuroSys 2018, section 6.1, tables 1 and 2, figures 2 and 5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.convergence import converged_epoch
from optimus_scheduler.forecast.end import as_rule
from optimus_scheduler.model import ConvergenceRule, JobSpec, Mode, Node, Resources, TaskDemand
from optimus_simulator.errors import BadTrace
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.truth.truth import LossLaw, ParameterServerLaw, PlacedTruth

GIB = 2**30
JOBS = 60
WINDOW_SECONDS = 12_000.0
INTERVAL_SECONDS = 600.0
PER_INTERVAL = 3.0
"""Jobs in an interval with Poisson arrivals."""
GOOGLE_SECONDS = 7 * 3600.0
"""Length of the window with Google-like arrivals, which come in bursts."""
_BURSTS = 0.6
"""Shape of the gamma-distributed rate of an interval: below 1, most intervals are nearly empty and some crowded."""

_TASK = Resources(2.5, 6 * GIB)
_MOST_TASKS = 16
_LONGEST_HOURS = 2.0
"""Of the run of a large job, scaled down. With the paper's six, its machines would be busy twice as long as it says."""
_FULL_EPOCHS = 100
_STEPS_PER_EPOCH = 50.0
_PATIENCE = 3
_BATCH = 40
_SYNC = (1.02, 2.78, 4.92, 0.0, 0.02)
_ASYNC = (2.83, 3.92, 0.0, 0.11)
_MEASURED_PARAMETERS = 25.0
"""Millions, of the model that table 2 was measured with."""


class Model(NamedTuple):
    """One of the nine jobs."""

    name: str
    parameters: float
    """Millions."""
    hours: float
    """On one GPU."""
    loss: LossLaw
    """By epochs, 100 of which are the whole run of figure 5."""


MODELS = (
    Model("resnext-110", 1.7, 1.4, LossLaw(0.0868, 1.206, 0.148)),
    Model("resnet-50", 25.0, 331.0, LossLaw(0.3554, 6.837, 0.853)),
    Model("inception-bn", 11.3, 150.0, LossLaw(0.1610, 0.849, 0.0)),
    Model("kaggle", 1.4, 0.23, LossLaw(0.0555, 1.121, 0.042)),
    Model("cnn-rand", 6.0, 0.03, LossLaw(0.1165, 0.809, 0.0)),
    Model("dssm", 1.5, 4.7, LossLaw(0.2887, 4.973, 0.788)),
    Model("rnn-lstm", 4.7, 0.28, LossLaw(0.1288, 1.824, 0.392)),
    Model("seq2seq", 9.1, 8.0, LossLaw(0.1885, 1.113, 0.101)),
    Model("deepspeech2", 38.0, 337.0, LossLaw(0.599, 4.670, 0.768)),
)


def paper_workload(seed: int, arrivals: str = "uniform", jobs: int = JOBS, *, uneven: bool = False) -> Trace:
    """A workload drawn with this seed. `uneven`: parameters divided as MXNet does it (see `PlacedTruth`).

    Raises:
        BadTrace: there is no such kind of arrivals.
    """
    random = np.random.default_rng((seed, 61))
    times = _arrivals(arrivals, jobs, random)
    drawn = in_order(_job(number, time, random, uneven=uneven) for number, time in enumerate(times.tolist()))
    return Trace(f"paper-{arrivals}", _nodes(), drawn)


def _arrivals(kind: str, jobs: int, random: np.random.Generator) -> NDArray[np.float64]:
    match kind:
        case "uniform":
            return np.sort(random.uniform(0.0, WINDOW_SECONDS, jobs))
        case "poisson":
            return np.cumsum(random.exponential(INTERVAL_SECONDS / PER_INTERVAL, jobs))
        case "google":
            intervals = round(GOOGLE_SECONDS / INTERVAL_SECONDS)
            rates = random.gamma(_BURSTS, size=intervals)
            chosen = random.choice(intervals, jobs, p=rates / rates.sum())
            return np.sort((chosen + random.uniform(size=jobs)) * INTERVAL_SECONDS)
        case _:
            raise BadTrace(f"arrivals are uniform, poisson or google, not {kind!r}")


def _nodes() -> tuple[Node, ...]:
    cpu_servers = equal_nodes(7, Resources(16.0, 80 * GIB))
    gpu_servers = equal_nodes(6, Resources(8.0, 48 * GIB))
    return (*cpu_servers, *(Node(f"gpu-{node.name}", node.capacity) for node in gpu_servers))


def _job(number: int, submitted_at: float, random: np.random.Generator, *, uneven: bool) -> TraceJob:
    model = MODELS[int(random.integers(len(MODELS)))]
    mode = Mode.SYNC if random.random() < 0.5 else Mode.ASYNC
    rule = ConvergenceRule(
        loss_decrease=float(random.uniform(0.01, 0.05)), patience_epochs=_PATIENCE, max_epochs=float(_FULL_EPOCHS)
    )
    spec = JobSpec(
        worker=TaskDemand(_TASK, 1, _MOST_TASKS),
        server=TaskDemand(_TASK, 1, _MOST_TASKS),
        convergence=rule,
        mode=mode,
        global_batch_size=_BATCH if mode is Mode.SYNC else 4,
        requested_workers=4,
        requested_servers=4,
        family=model.name,
    )
    total_steps = end_epoch(model.loss, rule) * _STEPS_PER_EPOCH
    truth = PlacedTruth(
        total_steps=total_steps,
        law=_law(model, mode, total_steps),
        loss_law=model.loss,
        epoch_steps=_STEPS_PER_EPOCH,
        uneven=uneven,
    )
    return TraceJob(f"{model.name}-{number}", submitted_at, spec, truth)


def _law(model: Model, mode: Mode, total_steps: float) -> ParameterServerLaw:
    transfer = model.parameters / _MEASURED_PARAMETERS
    if mode is Mode.SYNC:
        theta, batch = [*_SYNC[:2], _SYNC[2] * transfer, *_SYNC[3:]], float(_BATCH)
    else:
        theta, batch = [_ASYNC[0], _ASYNC[1] * transfer, *_ASYNC[2:]], 1.0
    unscaled = ParameterServerLaw(tuple(theta), batch, mode)
    run_seconds = min(model.hours, _LONGEST_HOURS) * 3600
    factor = run_seconds / total_steps * unscaled(1, 1)
    return ParameterServerLaw(tuple(value * factor for value in theta), batch, mode)


def end_epoch(loss: LossLaw, rule: ConvergenceRule) -> int:
    """The epoch at whose end the rule holds on the true loss."""
    return converged_epoch([loss(epoch) for epoch in range(_FULL_EPOCHS)], as_rule(rule)) or _FULL_EPOCHS
