"""How well the goodput of jobs with an elastic batch is predicted, and how good the batches are that it chooses.

    python -m benchmarks.goodput --data PATH/pollux/profiles [--draws 12] [--json]

The measured applications of Pollux (not ncf, which has one size). In each draw a job has measured two sizes, each with
a random batch, and ended jobs of its kind five each, all with 5 % noise. In a random epoch, whose true noise scale at a
middle batch it knows, its goodput is predicted at 3 to 32 workers with the batch that is best by the prediction. The
`error` is the mean of |log predicted / true goodput| with that batch, `efficiency` the mean of its true goodput by that
of the truly best one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from optimus_models import BatchSpeed, ElasticBatch, Goodput, NoiseScale
from optimus_models.speed.batch import BatchSamples
from optimus_models.speed.goodput import StepTimes, cut
from optimus_simulator.traces.pollux import load_application
from optimus_simulator.truth.profiles import Application, packed

APPLICATIONS = ("cifar10", "bert", "deepspeech2", "imagenet", "yolov3")
ENDED = (0, 1, 4)
"""How many ended jobs there are."""
WORKERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)
JUDGED = WORKERS[2:]
NOISE, OWN_SIZES, THEIR_SIZES = 0.05, 2, 5


def measured(application: Application, limits: ElasticBatch, count: int, random: np.random.Generator) -> BatchSamples:
    """So many sizes with random batches."""
    workers = random.choice(WORKERS, count)
    batches = [int(random.choice(limits.choices(int(w)))) for w in workers]
    pairs = zip(workers.tolist(), batches, strict=True)
    seconds, exchange = np.array([application.step_parts(packed(w), application.cut(b, w)) for w, b in pairs]).T
    computing = (seconds - exchange) * np.exp(random.normal(0.0, NOISE, count))
    exchange = exchange * np.exp(random.normal(0.0, NOISE, count))
    passes, local = cut(limits, workers, batches)
    return BatchSamples(workers, local, passes, computing + exchange, exchange)


def judged(application: Application, n_ended: int, random: np.random.Generator) -> tuple[float, float]:
    """Error and efficiency of one draw."""
    limits = ElasticBatch(application.initial_batch, application.max_batch, application.max_local)
    own = measured(application, limits, OWN_SIZES, random)
    others = [measured(application, limits, THEIR_SIZES, random) for _ in range(n_ended)]
    speed = BatchSpeed.fit(own, limits.per_pass, others)
    epoch = int(random.integers(1, len(application.epoch_progress)))
    noise = application.noise_scale(int(application.batches[len(application.batches) // 2]), epoch)
    model = Goodput(StepTimes(speed, limits), NoiseScale(min(noise, 1e12), 1), speed.confidence)
    errors, efficiencies = [], []
    for workers in JUDGED:
        true = {batch: goodput(application, workers, batch, epoch) for batch in limits.choices(workers)}
        found = true[model.best_batch(workers)]
        errors.append(abs(math.log(float(model.predict([workers], [0])[0]) / found)))
        efficiencies.append(found / max(true.values()))
    return float(np.mean(errors)), float(np.mean(efficiencies))


def goodput(application: Application, workers: int, batch: int, epoch: int) -> float:
    """The true one."""
    in_effect = application.cut(batch, workers)
    return float(application.gains(in_effect.effective)[epoch]) / application.step_seconds(packed(workers), in_effect)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder for each application")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name in APPLICATIONS:
        application = load_application(options.data / name)
        for n_ended in ENDED:
            draws = [judged(application, n_ended, np.random.default_rng(seed)) for seed in range(options.draws)]
            error, efficiency = np.mean(draws, axis=0).tolist()
            rows.append({"application": name, "ended": n_ended, "error": error, "efficiency": efficiency})
            if not options.json:
                print(f"{name:12} {n_ended} ended jobs: error {error:.3f}, efficiency {efficiency:.3f}")
    if options.json:
        print(json.dumps({"benchmark": "goodput", "draws": options.draws, "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1:])
