"""How far `optimus` is from what is possible for any scheduler, blind and told the truth.

One JSON object per trace: the bound, the mean completion times and how far they are above it.

    python -m benchmarks.possible pollux:PATH/workload-1.csv pollux:PATH/workload-2.csv
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from optimus_simulator.options import Options
from optimus_simulator.scenario import Scenario, bound_of, simulate


def main() -> None:
    """One line per trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--policy", default="optimus")
    parser.add_argument("--elastic-batch", action="store_true")
    arguments = parser.parse_args()
    for trace in arguments.traces:
        options = Options(elastic_batch=arguments.elastic_batch)
        print(json.dumps(compared(trace, arguments.policy, options)), flush=True)


def compared(trace: str, policy: str, options: Options) -> dict[str, Any]:
    """The bound of one trace, and what the policy makes of it."""
    found = bound_of(trace, options, 0)
    runs = {told: _figures(trace, policy, options, told=told) for told in (False, True)}
    return {
        "trace": found.trace,
        "policy": policy,
        "bound": found.as_json(),
        "blind": runs[False],
        "blind_above_bound": runs[False]["mean_jct_seconds"] / found.mean_jct_seconds - 1.0,
        "oracle": runs[True],
        "oracle_above_bound": runs[True]["mean_jct_seconds"] / found.mean_jct_seconds - 1.0,
    }


def _figures(trace: str, policy: str, options: Options, *, told: bool) -> dict[str, float]:
    return simulate(Scenario(trace, policy, 0, replace(options, oracle=told))).figures()


if __name__ == "__main__":
    main()
