"""The Pollux workloads: 160 all-reduce jobs in 8 hours on 16 nodes of 4 GPUs, with measured profiles.

The profile of an application is placements.csv, scalability.csv and validation-<batch>.csv in its folder.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from optimus_contract.job import MAX_BATCH
from optimus_contract.limits import MAX_POSIX_SECONDS, MAX_TASKS
from optimus_models.speed.goodput import ElasticBatch
from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.rows import Row, opened, reading, rows
from optimus_simulator.truth.profiles import GPUS_PER_NODE, MAX_EPOCHS, MAX_LOCAL_BATCH, Application, ProfiledTruth

FloatArray = NDArray[np.float64]
_LARGEST = 1e30
"""Of a figure in a table: sums of squares stay far below the largest float."""


@lru_cache(maxsize=64)
def load_application(folder: Path) -> Application:
    """Read placements.csv, scalability.csv and validation-<batch>.csv of one application.

    Raises:
        BadTrace: a file is missing or malformed.
    """
    with reading(folder, "the profile of an application"):
        validations = sorted((int(path.stem.split("-")[1]), _table(path)) for path in folder.glob("validation-*.csv"))
        placements, scalability = _table(folder / "placements.csv"), _table(folder / "scalability.csv")
        if not validations:
            raise ValueError("it has no validation-BATCH.csv")
        return _application(folder.name, validations, placements, scalability)


_Table = dict[str, list[str]]


def _table(path: Path) -> _Table:
    with reading(path, "a table"), opened(path) as text:
        found = list(rows(text))
        if not found:
            raise ValueError("it has no rows")
        return {name: [row.text(name) for row in found] for name in found[0].fields}


def _floats(table: _Table, *names: str) -> FloatArray:
    found = np.array([[float(value) for value in table[name]] for name in names]).T
    if not (np.abs(found) <= _LARGEST).all():
        raise ValueError(f"a value of {', '.join(names)} is no number up to {_LARGEST:g}")
    return found


def _application(
    name: str, validations: list[tuple[int, _Table]], placements: _Table, scalability: _Table
) -> Application:
    columns = {
        column: np.array([_floats(table, column)[: MAX_EPOCHS[name], 0] for _, table in validations])
        for column in ("progress", "iteration", "grad_sqr", "grad_var")
    }
    local = [int(value) for value in placements["local_bsz"]]
    return Application(
        name=name,
        batches=np.array([float(batch) for batch, _ in validations]),
        iterations=columns["iteration"],
        grad_sqr=columns["grad_sqr"],
        grad_var=columns["grad_var"],
        epoch_progress=columns["progress"].min(axis=0),
        min_local=min(local),
        max_local=min(max(local), MAX_LOCAL_BATCH.get(name, max(local))),
        placements=_by_placement(placements),
        grid=_grid(placements, scalability),
    )


def _by_placement(placements: _Table) -> dict[tuple[int, ...], tuple[FloatArray, FloatArray]]:
    keys = [_digits(text) for text in placements["placement"]]
    local, times = _floats(placements, "local_bsz")[:, 0], _floats(placements, "step_time", "sync_time")
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return {key: (local[indices], times[indices]) for key, indices in rows.items()}


def _digits(text: str) -> tuple[int, ...]:
    return tuple(int(digit) for digit in text)


def _grid(placements: _Table, scalability: _Table) -> tuple[FloatArray, FloatArray]:
    """Mean of the placements of equal size, and the larger sizes that were measured by number of nodes only."""
    sizes = np.array([(len(_digits(text)), sum(_digits(text))) for text in placements["placement"]], dtype=np.float64)
    points = np.column_stack([sizes, _floats(placements, "local_bsz")])
    unique, group = np.unique(points, axis=0, return_inverse=True)
    times = _floats(placements, "step_time", "sync_time")
    counts = np.bincount(group.reshape(-1))
    means = np.column_stack([np.bincount(group.reshape(-1), weights=column) / counts for column in times.T])
    more = _floats(scalability, "num_nodes", "num_replicas", "local_bsz")
    return np.vstack([unique, more]), np.vstack([means, _floats(scalability, "step_time", "sync_time")])


NODES = 16
GPU = "t4"
_WORKER = Resources(gpus={GPU: 1})
_NO_SERVERS = TaskDemand(Resources(), 0, 0)
_ONE_GPU = frozenset({"ncf"})
"""Applications that never ran on more than one GPU in the published simulations: their batch is too small for it."""


def read_pollux(path: Path, *, profiles: Path | None = None, faithful: bool = False, elastic: bool = False) -> Trace:
    """A workload file; `profiles` defaults to the folder of that name beside the workloads' folder. `elastic`: jobs let
    their batch be chosen between the smallest and the largest that was measured.

    Raises:
        BadTrace: a file is missing or malformed.
    """
    folder = profiles or path.parent.parent / "profiles"
    with reading(path, "a Pollux workload"), opened(path) as text:
        jobs = in_order(
            _job(row, load_application(folder / row.text("application")), faithful, elastic) for row in rows(text)
        )
    return Trace(path.stem, equal_nodes(NODES, Resources(gpus={GPU: GPUS_PER_NODE})), jobs)


def _job(row: Row, application: Application, faithful: bool, elastic: bool) -> TraceJob:
    batch, gpus = row.whole("batch_size", 1, MAX_BATCH), row.whole("num_replicas", 1, MAX_TASKS)
    limits = _limits(application) if elastic else None
    most = 1 if application.name in _ONE_GPU else (limits.maximum if limits else batch) // application.min_local
    most = min(max(most, 1), NODES * GPUS_PER_NODE)
    spec = JobSpec(
        worker=TaskDemand(_WORKER, 1, max(most, gpus)),
        server=_NO_SERVERS,
        convergence=ConvergenceRule(max_epochs=float(application.max_epochs)),
        architecture=Architecture.ALLREDUCE,
        global_batch_size=batch,
        requested_workers=gpus,
        requested_servers=0,
        family=application.name,
        elastic_batch=limits,
    )
    return TraceJob(
        row.text("name"),
        row.number("time", 0, MAX_POSIX_SECONDS),
        spec,
        ProfiledTruth(application, batch, whole_seconds=faithful, quirks=faithful, elastic=limits is not None),
    )


def _limits(application: Application) -> ElasticBatch | None:
    """None for one that the published simulations give a fixed batch, too."""
    if application.name in _ONE_GPU:
        return None
    return ElasticBatch(application.initial_batch, application.max_batch, application.max_local)
