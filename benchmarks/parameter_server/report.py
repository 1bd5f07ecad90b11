"""From rows to a summary against the goals, and to a table."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch

LARGEST = 25_000_000
GOALS = {"local": 1.0, "tcp": 1.35, "paced": 1.10, "server_memory_in_shares": 4.0}

Row = dict[str, Any]


def machine() -> Row:
    """What it was measured on, and how busy that was."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "load_before": os.getloadavg(),
    }


def summary(rows: Sequence[Row], paced: Sequence[Row]) -> Row:
    """Means over w in {2, 4} and all p of the largest vector, beside the goals."""
    chosen = [row for row in rows if row["parameters"] == LARGEST and row["workers"] > 1]
    found: Row = {"goals": GOALS}
    if chosen:
        names = chosen[0]["times_ddp"]
        found["times_ddp"] = {name: _mean(row["times_ddp"][name] for row in chosen) for name in names}
        found["times_all_reduce"] = {name: _mean(row["times_all_reduce"][name] for row in chosen) for name in names}
        found["times_ddp_median"] = {name: _mean(row["times_ddp_median"][name] for row in chosen) for name in names}
        found["cpu_times_ddp"] = {name: _mean(_cpu_ratio(row, name) for row in chosen) for name in names}
        found["server_memory_in_shares"] = max(row["server_memory_in_shares"] for row in chosen)
    limited = [row for row in paced if row["workers"] > 1]
    if limited:
        found["paced_times_ideal"] = {
            name: _mean(row["times_ideal"][name] for row in limited) for name in limited[0]["times_ideal"]
        }
    return found


def _mean(values: Any) -> float:
    return round(statistics.fmean(values), 3)


def _cpu_ratio(row: Row, name: str) -> float:
    cpu = row["cpu_milliseconds"]
    return float(cpu[name] / cpu["ddp"])


def table(result: Row) -> str:
    """Markdown."""
    lines = [f"{result['machine']}", ""]
    if rows := result["rows"]:
        names = list(rows[0]["milliseconds"])
        lines += [f"| parameters | w, p | {' | '.join(names)} |", "|" + "---|" * (2 + len(names))]
        lines += [_line(row, names) for row in rows]
    if paced := result["paced"]:
        lines += ["", "| parameters | w, p | ideal ms | float32 | bf16 push |", "|---|---|---|---|---|"]
        lines += [_paced_line(row) for row in paced]
    return "\n".join([*lines, "", f"{result['summary']}"])


def _line(row: Row, names: Sequence[str]) -> str:
    cells = [_cell(row, name) for name in names]
    return f"| {row['parameters'] / 1e6:.0f}M | {row['workers']}, {row['servers']} | {' | '.join(cells)} |"


def _cell(row: Row, name: str) -> str:
    ratio = f" ({row['times_ddp'][name]:.2f})" if name in row["times_ddp"] and row["workers"] > 1 else ""
    return f"{row['milliseconds'][name]:.1f}{ratio}"


def _paced_line(row: Row) -> str:
    cells = [f"{row['milliseconds'][name]:.0f} ({row['times_ideal'][name]:.2f})" for name in row["times_ideal"]]
    size = f"{row['parameters'] / 1e6:.0f}M | {row['workers']}, {row['servers']}"
    return f"| {size} | {row['ideal_milliseconds']:.0f} | {' | '.join(cells)} |"
