"""From a CSV file of measured speeds, one row per measurement, to speeds by GPU type."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from optimus_cli.errors import BadInput
from optimus_models.study import MeasuredSpeed

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
