"""How true is what jobs are told on a day like any other: random jobs on a real service on this machine.

    python -m benchmarks.random_day [--seed 1] [--minutes 8] [--slots 4] [--out FOLDER]

Starts `optimus serve` with a data directory of its own. For so many minutes, owners submit jobs of all kinds (tasks
with rules of loss and limits, scripts that end, fail, hang, stop early or are silent), with and without a dry run, and
pause, resume, change and cancel some. Each second, every job's status and explanation are read. One JSON object on
stdout:

* `end`, by kind of job: looks at jobs that succeeded in which a time left was told, and the part of these 80 %
  intervals that held; `start`: the same for starts of jobs that waited; both without what was told
  before a job's owner changed, paused or resumed it;
* `wrong_speeds`: looks with a speed 1.7 times what the steps of the last 12 s show, or less than that part of it;
* `silent_untold`: looks at jobs that made no step for 12 s and were told of no standstill;
* `unfinished_successes`: succeeded jobs with a progress other than 1.

`--out FOLDER`: `sentences.txt` with every kind of sentence that was told, once, to be read by somebody, and
`wrong.txt` with each look of which something is counted above. Jobs are random by the seed;
times are those of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.random_day.day import live, write

from optimus_cli.demo.processes import LocalService


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="optimus-day-", ignore_cleanup_errors=True) as temporary:
        data = Path(temporary) / "data"
        data.mkdir()
        words = ("--port", "0", "--slots", str(options.slots), "--stop-tasks")
        service = LocalService(data, Path(temporary) / "service.log", words)
        try:
            day = live(service.start(), options.seed, options.minutes)
        finally:
            service.stop()
    row = {"seed": options.seed, "minutes": options.minutes, "load": os.getloadavg()[0], **day.figures()}
    print(json.dumps(row), flush=True)
    if options.out is not None:
        write(day, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
