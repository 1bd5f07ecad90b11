"""How well ended jobs of any kind tell how long a job goes on of which nothing else is known (`rest_of_life`).

    python -m benchmarks.unknown_lengths --data FILE [--first 40] [--scale 1,0.02]

`--data` is `traces/philly.csv.gz`. The first jobs of each of its clusters start in order of time; at the start, a
tenth, half and nine tenths of its life each is asked how long it still goes on, by the jobs that had ended by then
(`learned`) and by none (`nothing_known`). `--scale` multiplies all times: 0.02 makes minutes of hours, as on a first
day. One JSON object a cluster and scale: `median_factor`, by how much the median is off (geometric mean of the larger
over the smaller, seconds below one as one), and `held`, the part of the 80 % intervals that hold.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from optimus_scheduler.ahead.queue import rest_of_life
from optimus_scheduler.settings import Settings

_AGES = (0.0, 0.1, 0.5, 0.9)
_REMEMBERED = 200


def read_lengths(path: Path) -> Mapping[str, Sequence[tuple[float, float]]]:
    """Of each cluster the jobs as (submission, seconds), in order of submission."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        for row in csv.DictReader(text):
            submitted = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp()
            found[row["cluster"]].append((submitted, float(row["duration"])))
    return {cluster: sorted(jobs) for cluster, jobs in sorted(found.items())}


def judged(jobs: Sequence[tuple[float, float]], *, learn: bool) -> dict[str, float]:
    """Of jobs as (start, seconds), in order of start."""
    errors, held = list[float](), list[bool]()
    for number, (start, seconds) in enumerate(jobs):
        for age in _AGES:
            now = start + age * seconds
            ended = sorted((began + took, took) for began, took in jobs[:number] if began + took <= now)
            lengths = [took for _, took in ended][-_REMEMBERED:] if learn else []
            rest, left = rest_of_life(lengths, age * seconds, Settings().typical_seconds), (1.0 - age) * seconds
            errors.append(abs(math.log(max(rest.mean, 1.0) / max(left, 1.0))))
            held.append(rest.low <= left <= rest.high)
    return {"median_factor": math.exp(fmean(errors)), "held": fmean(held)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="philly.csv.gz")
    parser.add_argument("--first", type=int, default=40, help="so many jobs of each cluster")
    parser.add_argument("--scale", default="1,0.02", help="of all times")
    options = parser.parse_args(arguments)
    if not options.data.is_file():
        parser.error(f"--data: there is no file {options.data}; give the path of philly.csv.gz")
    for cluster, all_jobs in read_lengths(options.data).items():
        for scale in map(float, options.scale.split(",")):
            jobs = [(start * scale, max(seconds * scale, 1.0)) for start, seconds in all_jobs[: options.first]]
            figures = {"learned": judged(jobs, learn=True), "nothing_known": judged(jobs, learn=False)}
            print(json.dumps({"cluster": cluster, "jobs": len(jobs), "scale": scale, **figures}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
