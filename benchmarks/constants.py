"""Whether the constants of a change matter: each halved and doubled. One JSON object per run, the table on stderr.

    python -m benchmarks.constants world:plain world:gangs pollux:PATH/workload-1.csv [--seed 0] [--jobs 60]

A trace is one of `optimus simulate`, or `world:NAME` of `benchmarks.scenarios`, drawn with the seed, with so many jobs.
Each is replayed under the policy `optimus` as `optimus simulate --set NAME=VALUE` replays it: with every constant as it
is, with other draws of what is measured with errors (speeds, losses), which says how much is chance, and with each
constant halved and doubled. The table has the change of the mean completion time, of that as it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.scenarios.worlds import WORLDS, trace_lines

from optimus_simulator.options import Options
from optimus_simulator.scenario import Scenario, simulate

CONSTANTS = ("rescale_margin", "doubt_margin", "least_speedup")
_TIMES = (0.5, 2.0)
_OTHER_DRAWS = (1001, 1002)
"""Added to the seed, of what is measured: the trace stays."""
_AS_IT_IS = "as it is"
_KEPT = ("mean_jct_seconds", "makespan_seconds", "restarts_per_job")


def variants(options: Options, seed: int) -> Iterator[tuple[str, Options, int]]:
    """What is run: its name, the options and the seed."""
    yield _AS_IT_IS, options, seed
    for number, more in enumerate(_OTHER_DRAWS, start=1):
        yield f"other draw {number}", options, seed + more
    for name in CONSTANTS:
        for times in _TIMES:
            value = getattr(options, name) * times
            yield f"{name} {value:g}", replace(options, **{name: value}), seed


def run(folder: Path, trace: str, seed: int, n_jobs: int) -> Iterator[dict[str, Any]]:
    """The runs of one trace."""
    kind, _, name = trace.partition(":")
    options = Options()
    if kind == "world":
        options, file = WORLDS[name].options, folder / f"{name}.jsonl"
        file.write_text("\n".join(trace_lines(WORLDS[name].knobs, seed, WORLDS[name].jobs or n_jobs)))
    for variant, changed, drawn in variants(options, seed):
        begin = time.process_time()
        scenario = Scenario(str(file) if kind == "world" else trace, "optimus", drawn, changed)
        figures = simulate(scenario).figures()
        found = {"trace": name.rpartition("/")[2], "variant": variant, "options": " ".join(changed.flags())}
        yield found | {each: figures[each] for each in _KEPT} | {"cpu_seconds": time.process_time() - begin}


def table(runs: Sequence[dict[str, Any]]) -> str:
    """The change of the mean completion time by trace and variant, and over all traces."""
    times = {(one["trace"], one["variant"]): one["mean_jct_seconds"] for one in runs}
    traces, names = list(dict.fromkeys(key[0] for key in times)), list(dict.fromkeys(key[1] for key in times))
    lines = [f"| trace | {_AS_IT_IS}, s | {' | '.join(names[1:])} |", "|---" * (len(names) + 1) + "|"]
    changes = {
        trace: [times[trace, name] / times[trace, _AS_IT_IS] - 1.0 for name in names[1:] if (trace, name) in times]
        for trace in traces
    }
    for trace, row in changes.items():
        lines.append(f"| {trace} | {times[trace, _AS_IT_IS]:,.0f} | {' | '.join(f'{each:+.1%}' for each in row)} |")
    whole = [row for row in changes.values() if len(row) == len(names) - 1]
    means = " | ".join(f"{statistics.fmean(column):+.1%}" for column in zip(*whole, strict=True))
    return "\n".join([*lines, f"| mean | | {means} |"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=60)
    options = parser.parse_args(arguments)
    runs = []
    with TemporaryDirectory() as folder:
        for trace in options.traces:
            for one in run(Path(folder), trace, options.seed, options.jobs):
                runs.append(one)
                print(json.dumps(one), flush=True)
    print(table(runs), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
