"""What is asked for on the command line, measured and printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from itertools import product

import torch
from benchmarks.parameter_server.contenders import Size
from benchmarks.parameter_server.measure import Options, paced_row, row
from benchmarks.parameter_server.report import machine, summary, table

MILLION = 1_000_000


def main() -> None:
    """Measure and print."""
    options = _options()
    torch.set_num_threads(1)
    before = machine()
    sizes = [
        Size(n * MILLION // 16 * 16, workers, servers)
        for n, workers, servers in product(options.millions, options.workers, options.servers)
    ]
    measuring = Options(options.rounds, options.steps, options.rest, options.realtime, tuple(options.contenders))
    rows, paced = [], []
    for size in sizes if options.rounds else []:
        rows.append(row(size, measuring))
        _progress(rows[-1])
    slowly = replace(measuring, n_rounds=options.paced_rounds, n_steps=3)
    for size in sizes:
        if options.paced_rounds and size.n_floats == max(each.n_floats for each in sizes):
            paced.append(paced_row(size, slowly))
            _progress(paced[-1])
    result = {"machine": before | {"load_after": os.getloadavg()}, "rows": rows, "paced": paced}
    result["summary"] = summary(rows, paced)
    print(json.dumps(result, indent=1) if options.json else table(result))


def _progress(one: object) -> None:
    sys.stderr.write(json.dumps(one) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Step time of the parameter servers beside DDP on gloo.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 10, 25], help="parameters")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5, help="bursts of each contender; 0: only the paced ones")
    parser.add_argument("--steps", type=int, default=5, help="in a burst")
    parser.add_argument("--rest", type=float, default=1.0, help="pause after each burst, in bursts")
    parser.add_argument("--paced-rounds", type=int, default=3, help="bursts of the paced runs, of 3 steps; 0: none")
    parser.add_argument("--contenders", nargs="*", default=[], help="beside DDP: local unix tcp tcp_bf16 loopback")
    parser.add_argument("--realtime", action="store_true", help="run bursts before other work (needs the right)")
    return parser.parse_args()
