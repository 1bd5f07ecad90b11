"""How often the 80 % interval of a speed with more workers than were ever tried holds the measured one.

    python -m benchmarks.speed_more_workers --data FOLDER

The folder holds elasticflow/throughputs_*/*.csv (steps/s by global batch and GPUs) and gavel_throughputs.json (steps/s
by model, batch and GPUs). Of each training, its smallest size is measured, or two or three sizes next to each other;
the next larger size is predicted, and all larger ones. How much belief stands behind the spread of the
process (`_SPREAD_EVIDENCE` of `optimus_models.speed.scaling`) was chosen by these files.

Neither source tells where nodes end. The Pollux profiles (pollux/profiles) do: of each application and each batch that
was measured, one, two or three sizes within one node of four GPUs are known, or these and two whole nodes, and two to
four whole nodes are predicted: by the curve of scripts, which tell steps alone (`scripts`), and by that of jobs that
tell the time of their exchange (`all-reduce`). `next` is the first size that is not known, `all larger` all of them.
`alone`: no other job of the cluster has left a node; `beside others`: the five other applications have, and told their
jumps (`optimus_models.speed.boundary`). What is believed before any jump was seen was chosen by these profiles; without
the application that is judged (`by others`) it is what its likelihood over the other five prefers. ElasticFlow's A100
have nodes of eight GPUs (its testbed) and took no part: `A100`, by model.

A script may not share its work: what is believed of that (`UNSHARED` of `optimus_scheduler.forecast.speed_fits`) is the
likeliest by the sources above, of which the workers all share theirs; `unshared` has it, `by others` without the source
that is judged. Rows with `may not share` have that belief, and `error` has mean errors, |log|, in per cent.

One JSON object is printed: per cent held by source, for each number of measured sizes.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from optimus_models import ScalingCurve
from optimus_models.speed.boundary import Boundary, Jumps
from optimus_models.speed.ring import RingSamples, RingSpeed
from optimus_models.speed.scaling import Unshared, observed_jump
from optimus_scheduler.forecast.speed_fits import UNSHARED
from optimus_simulator.traces.pollux import load_application
from optimus_simulator.truth.profiles import GPUS_PER_NODE, Application, packed

FloatArray = NDArray[np.float64]

MEASURED = (1, 2, 3)
_PARTS = np.linspace(0.0, 0.99, 100)
"""Of trainings that do not share, among which the likeliest is chosen."""
_NAME = re.compile(r"\('(.*)', (\d+)\)")

Training = Mapping[int, float]
"""Steps per second by workers."""


def trainings(folder: Path) -> dict[str, list[Training]]:
    """By source; those of at least two sizes."""
    found = {path.name: list(_of_elasticflow(path)) for path in sorted((folder / "elasticflow").glob("throughputs_*"))}
    gavel = json.loads((folder / "gavel_throughputs.json").read_text())
    found |= {f"gavel {gpu}": list(_of_gavel(gavel[gpu])) for gpu in ("k80", "p100", "v100")}
    return {source: [each for each in of_source if len(each) > 1] for source, of_source in found.items()}


def _of_elasticflow(folder: Path) -> Iterator[Training]:
    for path in sorted(folder.glob("*.csv")):
        yield from _of_file(path)


def _of_file(path: Path) -> Iterator[Training]:
    """By global batch."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            del row["global_batch_size"]
            yield _above_0({int(gpus): float(speed) for gpus, speed in row.items() if speed})


def _of_gavel(speeds: Mapping[str, Mapping[str, float]]) -> Iterator[Training]:
    by_name: dict[str, dict[int, float]] = {}
    for name, alone in speeds.items():
        if match := _NAME.match(name):
            by_name.setdefault(match[1], {})[int(match[2])] = alone["null"]
    yield from map(_above_0, by_name.values())


def _above_0(speeds: Training) -> Training:
    return {workers: speed for workers, speed in sorted(speeds.items()) if speed > 0}


def held(training: Training, n_measured: int, *, next_only: bool) -> list[bool]:
    """Whether each interval held."""
    return [one for one, _ in judged(training, n_measured, None, next_only=next_only)]


def judged(
    training: Training, n_measured: int, unshared: Unshared | None, *, next_only: bool
) -> list[tuple[bool, float]]:
    """Whether each interval held, and |log| of the predicted speed over the true one."""
    sizes, found = list(training), list[tuple[bool, float]]()
    for first in range(1 if n_measured == 1 else len(sizes) - n_measured):
        known, left = sizes[first : first + n_measured], sizes[first + n_measured :]
        left = left[:1] if next_only else left
        curve = ScalingCurve.fit(known, [training[size] for size in known], unshared=unshared)
        mean, low, high = curve.predict_with_interval(left, np.zeros(len(left)))
        true = np.array([training[size] for size in left])
        errors = np.abs(np.log(mean / true))
        found += zip(((low <= true) & (true <= high)).tolist(), errors.tolist(), strict=True)
    return found


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Per cent held by source and on the mean of the sources; and how likely it is that work is not shared."""
    of_sources, rows = trainings(folder), dict[str, dict[str, float]]()
    by_others = {
        source: _likeliest_unshared([each for other in of_sources if other != source for each in of_sources[other]])
        for source in of_sources
    }
    everything = _likeliest_unshared([each for of_source in of_sources.values() for each in of_source])
    for n in MEASURED:
        for which in ("next", "all larger"):
            for belief, unshared in (("", None), (", may not share", Unshared(UNSHARED))):
                found = {
                    source: [one for each in of_source for one in judged(each, n, unshared, next_only=which == "next")]
                    for source, of_source in of_sources.items()
                }
                for what, column in (("", 0), (", error", 1)):
                    row = {
                        source: 100.0 * float(np.mean([one[column] for one in each])) for source, each in found.items()
                    }
                    rows[f"{n} measured, {which}{belief}{what}"] = _with_mean(row)
    rows["unshared, by others"] = by_others
    rows["unshared"] = {"all": everything}
    return rows


def _likeliest_unshared(of_sources: Sequence[Training]) -> float:
    """Per cent of trainings of which more workers are no faster, by what their sizes tell of each."""
    even = Unshared(0.5)
    parts = np.array([ScalingCurve.fit(list(each), list(each.values()), unshared=even).unshared for each in of_sources])
    likelihoods = [
        float(np.log(_PARTS[k] * parts + (1.0 - _PARTS[k]) * (1.0 - parts)).sum()) for k in range(len(_PARTS))
    ]
    return 100.0 * float(_PARTS[int(np.argmax(likelihoods))])


WITHIN_A_NODE = ((1,), (1, 2), (1, 2, 4))
WHOLE_NODES = tuple(nodes * GPUS_PER_NODE for nodes in (2, 3, 4))
_Fit = Callable[[Application, int, Sequence[int], Boundary], ScalingCurve | RingSpeed]
"""A model of a job's speed with this batch, from these numbers of workers."""
_A100_PER_NODE = 8
_SCALES = np.geomspace(0.1, 10.0, 200)
"""Among which `by others` chooses."""


def measure_nodes(folder: Path) -> dict[str, dict[str, float]]:
    """Per cent held by application and on the mean of the applications, of sizes that leave a node."""
    applications = [load_application(path) for path in sorted((folder / "pollux" / "profiles").iterdir())]
    beliefs = _beliefs({each.name: _jump_of(_profiled(each), GPUS_PER_NODE) for each in applications})
    rows = dict[str, dict[str, float]]()
    for kind, fit in CURVES.items():
        for known in (*WITHIN_A_NODE, (*WITHIN_A_NODE[-1], WHOLE_NODES[0])):
            ahead = [size for size in WHOLE_NODES if size not in known]
            for belief, jumps in beliefs.items():
                for which, sizes in (("next", ahead[:1]), ("all larger", ahead)):
                    row = {
                        each.name: _held_by(each, fit, known, sizes, Boundary(GPUS_PER_NODE, jumps[each.name]))
                        for each in applications
                    }
                    rows[f"{kind}, {', '.join(map(str, known))} measured, {belief}, {which}"] = _with_mean(row)
    return rows


def measure_a100(folder: Path) -> dict[str, dict[str, float]]:
    """The same by model of ElasticFlow's A100, with the curve of scripts."""
    models = {
        path.stem: [each for each in _of_file(path) if max(each) > _A100_PER_NODE]
        for path in sorted((folder / "elasticflow" / "throughputs_A100").glob("*.csv"))
    }
    models = {name: trainings for name, trainings in models.items() if trainings}
    beliefs = _beliefs({name: _jump_of(each, _A100_PER_NODE) for name, each in models.items()})
    del beliefs["by others"]
    rows = dict[str, dict[str, float]]()
    for known in (*WITHIN_A_NODE, (1, 2, 4, 8)):
        for belief, jumps in beliefs.items():
            for which, most in (("next", 1), ("all larger", None)):
                row = {
                    name: _held_beyond(each, known, most, Boundary(_A100_PER_NODE, jumps[name]))
                    for name, each in models.items()
                }
                rows[f"A100, {', '.join(map(str, known))} measured, {belief}, {which}"] = _with_mean(row)
    return rows


def _with_mean(row: dict[str, float]) -> dict[str, float]:
    return row | {"mean": float(np.mean(list(row.values())))}


def _beliefs(observed: Mapping[str, float]) -> dict[str, dict[str, Jumps]]:
    """What may be believed of the jump of each kind of job, by the name of the belief."""
    others = {name: [jump for other, jump in observed.items() if other != name] for name in observed}
    return {
        "alone": dict.fromkeys(observed, Jumps()),
        "beside others": {name: Jumps.after(jumps) for name, jumps in others.items()},
        "by others": {name: Jumps(scale=_likeliest_scale(jumps)) for name, jumps in others.items()},
    }


def _likeliest_scale(jumps: Sequence[float]) -> float:
    """That of a Lomax distribution of the prior's shape."""
    shape, seen = Jumps().shape, np.array(jumps)
    logs = [len(seen) * np.log(shape / scale) - (shape + 1) * np.log1p(seen / scale).sum() for scale in _SCALES]
    return float(_SCALES[int(np.argmax(logs))])


def _jump_of(trainings: Iterable[Training], node: int) -> float:
    found = [observed_jump(list(each), list(each.values()), node) for each in trainings]
    return float(np.mean([jump for jump in found if jump is not None]))


def _profiled(application: Application) -> Iterator[Training]:
    """One for each batch that the most workers can share."""
    sizes = (*WITHIN_A_NODE[-1], *WHOLE_NODES)
    for batch in _batches(application):
        yield dict(zip(sizes, (1.0 / _steps(application, batch, sizes)[:, 0]).tolist(), strict=True))


def _batches(application: Application) -> list[int]:
    return [int(batch) for batch in application.batches if batch >= application.min_local * WHOLE_NODES[-1]]


def _held_by(
    application: Application, fit: _Fit, known: Sequence[int], sizes: Sequence[int], boundary: Boundary
) -> float:
    """Per cent, over the batches that the most workers can share."""
    found = list[bool]()
    for batch in _batches(application):
        low, high = fit(application, batch, known, boundary).predict_interval(sizes, np.zeros(len(sizes)))
        true = 1.0 / _steps(application, batch, sizes)[:, 0]
        found += ((low <= true) & (true <= high)).tolist()
    return 100.0 * float(np.mean(found))


def _held_beyond(trainings: Iterable[Training], known: Sequence[int], most: int | None, boundary: Boundary) -> float:
    """Per cent of sizes that leave a node, the first `most` of each training."""
    found = list[bool]()
    for training in trainings:
        left = [size for size in training if size > boundary.workers][:most]
        curve = ScalingCurve.fit(known, [training[size] for size in known], boundary=boundary)
        low, high = curve.predict_interval(left, left)
        true = np.array([training[size] for size in left])
        found += ((low <= true) & (true <= high)).tolist()
    return 100.0 * float(np.mean(found))


def _steps(application: Application, batch: int, sizes: Sequence[int]) -> FloatArray:
    """(n, 2) seconds of a step and of its exchange, with so many workers on the fewest nodes."""
    parts = [application.step_parts(packed(size), application.cut(batch, size)) for size in sizes]
    return np.array(
        [(step, exchange if size > 1 else 0.0) for size, (step, exchange) in zip(sizes, parts, strict=True)]
    )


def _scripts(application: Application, batch: int, sizes: Sequence[int], boundary: Boundary) -> ScalingCurve:
    return ScalingCurve.fit(sizes, 1.0 / _steps(application, batch, sizes)[:, 0], boundary=boundary)


def _all_reduce(application: Application, batch: int, sizes: Sequence[int], boundary: Boundary) -> RingSpeed:
    step, exchange = _steps(application, batch, sizes).T
    return RingSpeed.fit(RingSamples(sizes, step, exchange, float(batch)), boundary=boundary)


CURVES: Mapping[str, _Fit] = {"scripts": _scripts, "all-reduce": _all_reduce}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of all sources")
    options = parser.parse_args(arguments)
    rows = measure(options.data) | measure_nodes(options.data) | measure_a100(options.data)
    print(json.dumps({what: {name: round(held) for name, held in row.items()} for what, row in rows.items()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
