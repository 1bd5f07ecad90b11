"""Writes the dashboards: `python -m scripts.dashboards` (a test compares)."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.dashboards.cluster import CLUSTER
from scripts.dashboards.grafana import document
from scripts.dashboards.job import JOB
from scripts.dashboards.scheduler import SCHEDULER
from scripts.dashboards.service import SERVICE

FOLDER = Path(__file__).parents[2] / "helm" / "optimus" / "dashboards"
DASHBOARDS = (CLUSTER, JOB, SCHEDULER, SERVICE)


def files() -> dict[Path, str]:
    """Every dashboard's file and its content."""
    return {FOLDER / f"{each.name}.json": json.dumps(document(each), indent=2) + "\n" for each in DASHBOARDS}


def main() -> None:
    """Write them."""
    for path, text in files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
