"""The files of the Pollux profiles: placements.csv, scalability.csv and validation-<batch>.csv of each application."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from optimus_simulator.errors import BadTrace
from optimus_simulator.profiles import MAX_EPOCHS, MAX_LOCAL_BATCH, Application

FloatArray = NDArray[np.float64]


@lru_cache(maxsize=64)
def load_application(folder: Path) -> Application:
    """Read placements.csv, scalability.csv and validation-<batch>.csv of one application.

    Raises:
        BadTrace: a file is missing or malformed.
    """
    try:
        validations = sorted((int(path.stem.split("-")[1]), _table(path)) for path in folder.glob("validation-*.csv"))
        placements, scalability = _table(folder / "placements.csv"), _table(folder / "scalability.csv")
        return _application(folder.name, validations, placements, scalability)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise BadTrace(f"{folder}: not the profile of an application ({error})") from error


_Table = dict[str, list[str]]


def _table(path: Path) -> _Table:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def _floats(table: _Table, *names: str) -> FloatArray:
    return np.array([[float(value) for value in table[name]] for name in names]).T


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
