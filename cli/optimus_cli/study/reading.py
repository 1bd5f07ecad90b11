"""From a CSV file of logs, one row per run and epoch, to runs. Every complaint names file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from optimus_cli.errors import BadInput
from optimus_models.cost import GPU_HOUR_PRICES, SERVER_HOUR_PRICE, Prices
from optimus_models.study import Run

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
