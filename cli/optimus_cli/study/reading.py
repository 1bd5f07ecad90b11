"""From CSV files to runs (a row per run and epoch), and to measured speeds. Complaints name file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from optimus_cli.errors import BadInput
from optimus_models.cost import GPU_HOUR_PRICES, SERVER_HOUR_PRICE, Prices
from optimus_models.study import MeasuredSpeed, Run

REQUIRED = ("layers", "gpu", "epoch", "train_loss")
OPTIONAL = ("train_accuracy", "seconds", "parameters")
ROLES = REQUIRED + OPTIONAL
MAX_EPOCHS = 1_000_000
"""Epoch numbers beyond this are a mistake in the file; a run is kept as one array from 1 to its last epoch."""


class _Row(NamedTuple):
    line: int
    layers: int
    gpu: str
    epoch: int
    values: dict[str, float]


def parse_columns(options: list[str]) -> dict[str, str]:
    """`role=name` as column names by role; roles that are not given keep their own name. Raises `BadInput`."""
    names = {role: role for role in ROLES}
    for option in options:
        role, _, name = option.partition("=")
        if role not in names or not name:
            raise BadInput(f"--column {option}: expected ROLE=NAME with a role of {', '.join(ROLES)}")
        names[role] = name
    return names


def read_runs(path: Path, columns: Mapping[str, str]) -> list[Run]:
    """All runs of the file, ordered by size and GPU type. Raises `BadInput`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_header(path, reader.fieldnames or [], columns)
            rows = list(_rows(path, reader, columns))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise BadInput(f"{path}:1: no rows below the header")
    keys = sorted({(row.layers, row.gpu) for row in rows})
    return [_run(path, [row for row in rows if (row.layers, row.gpu) == key]) for key in keys]


def _check_header(path: Path, header: object, columns: Mapping[str, str]) -> None:
    present = list(header) if isinstance(header, (list, tuple)) else []
    for role in REQUIRED:
        if columns[role] not in present:
            has = ", ".join(present) or "nothing"
            raise BadInput(f"{path}:1: no column {columns[role]!r} (has {has}); name yours with --column {role}=NAME")


def _rows(path: Path, reader: csv.DictReader[str], columns: Mapping[str, str]) -> Iterator[_Row]:
    for row in reader:
        cells = _Cells(path, reader.line_num, row, columns)
        gpu = (row.get(columns["gpu"]) or "").strip()
        if not gpu:
            raise BadInput(f"{path}:{reader.line_num}:{columns['gpu']}: empty")
        values = {role: cells.number(role) for role in ("train_loss", *OPTIONAL)}
        yield _Row(reader.line_num, cells.whole("layers"), gpu, cells.whole("epoch"), values)


class _Cells(NamedTuple):
    path: Path
    line: int
    row: Mapping[str, str | None]
    columns: Mapping[str, str]

    def number(self, role: str) -> float:
        """NaN for an empty cell or an absent column: a log has gaps."""
        text = (self.row.get(self.columns[role]) or "").strip()
        if not text:
            return math.nan
        try:
            return float(text)
        except ValueError as error:
            raise self._complaint(role, f"{text!r} is not a number") from error

    def whole(self, role: str) -> int:
        value = self.number(role)
        if not 1 <= value <= MAX_EPOCHS or value != round(value):
            raise self._complaint(role, f"expected a whole number from 1 to {MAX_EPOCHS}, found {value:g}")
        return int(value)

    def _complaint(self, role: str, text: str) -> BadInput:
        return BadInput(f"{self.path}:{self.line}:{self.columns[role]}: {text}")


def _run(path: Path, rows: list[_Row]) -> Run:
    length = max(row.epoch for row in rows)
    arrays = {role: np.full(length, np.nan) for role in ("train_loss", *OPTIONAL)}
    seen: dict[int, int] = {}
    for row in rows:
        if row.epoch in seen:
            where = f"{path}:{row.line}:epoch"
            raise BadInput(f"{where}: epoch {row.epoch} of {row.layers} on {row.gpu} is in line {seen[row.epoch]} too")
        seen[row.epoch] = row.line
        for role, array in arrays.items():
            array[row.epoch - 1] = row.values[role]
    if not np.isfinite(arrays["train_loss"]).any():
        raise BadInput(f"{path}:{rows[0].line}:train_loss: {rows[0].layers} on {rows[0].gpu} has no finite loss at all")
    parameters = arrays["parameters"][np.isfinite(arrays["parameters"])]
    count = float(parameters[0]) if len(parameters) else None
    return Run(rows[0].layers, rows[0].gpu, arrays["train_loss"], arrays["train_accuracy"], arrays["seconds"], count)


SERVER = "server"


def parse_prices(options: list[str], gpus: Iterable[str]) -> Prices:
    """`GPU=USD` over the built-in list prices, for the types in `gpus`; a type without any price is free.

    Raises `BadInput`.
    """
    given = {}
    for option in options:
        name, _, text = option.rpartition("=")
        try:
            given[name] = float(text)
        except ValueError:
            given[name] = -1.0
        if not name or not 0 <= given[name] < float("inf"):
            raise BadInput(f"--price {option}: expected GPU=USD, such as V100=2.48")
    server = given.pop(SERVER, SERVER_HOUR_PRICE)
    prices = {gpu: given.get(gpu, GPU_HOUR_PRICES.get(gpu, 0.0)) for gpu in sorted(gpus)}
    unknown = sorted(set(given) - set(prices))
    if unknown:
        raise BadInput(f"--price {unknown[0]}: the file has {', '.join(prices)}")
    return Prices(prices, server)


# --- measured speeds, a row each, by GPU type ------------------------------------------------------------------------

_NAMES: Mapping[str, tuple[str, ...]] = {
    "workers": ("workers", "w"),
    "servers": ("servers", "ps", "p"),
    "steps_per_second": ("steps_per_second", "speed"),
}
"""What a column may be called."""
_MAX_TASKS = 100_000

Speeds = dict[str | None, list[MeasuredSpeed]]
"""By GPU type; None: the file does not say."""


def read_speeds(path: Path, model: str | None) -> Speeds:
    """The measurements of one `model` (or of the file's only one). Raises `BadInput`, which names line and column."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = _columns(path, list(reader.fieldnames or []))
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    found: Speeds = {}
    for line, row in _of_model(path, rows, model):
        gpu = (row.get("gpu") or "").strip() or None
        found.setdefault(gpu, []).append(_speed(path, line, row, columns))
    if not found:
        raise BadInput(f"{path}:1: no rows below the header")
    return found


def _columns(path: Path, header: list[str]) -> dict[str, str]:
    found = {}
    for role, names in _NAMES.items():
        name = next((each for each in names if each in header), None)
        if name is None:
            raise BadInput(f"{path}:1: no column {names[0]!r} (has {', '.join(header) or 'nothing'})")
        found[role] = name
    return found


def _of_model(
    path: Path, rows: Sequence[tuple[int, dict[str, str]]], model: str | None
) -> Iterator[tuple[int, dict[str, str]]]:
    models = sorted({row["model"] for _, row in rows if row.get("model")})
    if model is None and len(models) > 1:
        raise BadInput(f"{path}: speeds of {', '.join(models)}; choose one with --speeds-model")
    if model is not None and model not in models:
        raise BadInput(f"--speeds-model {model}: {path} has {', '.join(models) or 'no column model'}")
    return ((line, row) for line, row in rows if model is None or row.get("model") == model)


def _speed(path: Path, line: int, row: Mapping[str, str | None], columns: Mapping[str, str]) -> MeasuredSpeed:
    def number(role: str) -> float:
        text = (row.get(columns[role]) or "").strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise BadInput(f"{path}:{line}:{columns[role]}: expected a number above 0, found {text!r}")
        return value

    def count(role: str) -> int:
        value = number(role)
        if value != round(value) or value > _MAX_TASKS:
            raise BadInput(f"{path}:{line}:{columns[role]}: expected a whole number up to {_MAX_TASKS}")
        return int(value)

    return MeasuredSpeed(count("workers"), count("servers"), number("steps_per_second"))
