"""Trains perceptrons of several depths with a running service and writes their logs as a table for `optimus study`.

    optimus serve --slots 4                                             # in another terminal
    python examples/make_study_logs.py > examples/digits_depths.csv
    optimus study examples/digits_depths.csv --column gpu=device --batch-size 120 --examples 1437

Each depth is one job with one worker and one parameter server, trained for the same number of epochs. Losses are
read at the end of each epoch between the averages that the service keeps of what the workers reported; seconds per
epoch follow from the speed that it measured.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import uuid
from typing import Any

import numpy as np

from optimus_cli.client import DEFAULT_URL, Client, is_final

DEPTHS = (1, 2, 3, 4, 6)
WIDTH = 128
EPOCHS = 40
EXAMPLES, BATCH_SIZE, PIXELS, CLASSES = 1437, 120, 64, 10
POLL_SECONDS = 1.0


def specification(depth: int) -> dict[str, Any]:
    return {
        "name": f"digits-mlp-{depth}",
        "task": "optimus_workers.zoo.digits:mlp",
        "task_args": {"depth": depth, "width": WIDTH, "learning_rate": 0.01, "momentum": 0.0},
        "mode": "sync",
        "convergence": {"max_epochs": EPOCHS},
        "workers": {"min": 1, "max": 1},
        "servers": {"min": 1, "max": 1},
        "seed": 7,
    }


def parameters(depth: int) -> int:
    """Weights and biases of the perceptron."""
    return PIXELS * WIDTH + WIDTH + (depth - 1) * (WIDTH * WIDTH + WIDTH) + WIDTH * CLASSES + CLASSES


def rows_of(client: Client, depth: int) -> list[tuple[Any, ...]]:
    """Train one depth to its end; a row per epoch."""
    job = client.submit(specification(depth), str(uuid.uuid4()))
    while not is_final(job := client.job(job["id"])):
        time.sleep(POLL_SECONDS)
    if job["state"] != "succeeded":
        raise SystemExit(f"{job['name']} {job['state']}; see: optimus describe {job['id']}")
    told = client.predictions(job["id"], "1-1", "1-1")
    known = [(point["step"], point["loss"]) for point in told["losses"] if point["loss"] is not None]
    ends = np.arange(1, EPOCHS + 1) * EXAMPLES / BATCH_SIZE
    losses = np.interp(ends, [step for step, _ in known], [loss for _, loss in known])
    speed = told["speeds"][0]["steps_per_second"] or float("nan")
    seconds = round(EXAMPLES / BATCH_SIZE / speed, 4)
    return [
        (depth, "cpu", epoch, round(float(loss), 5), seconds, parameters(depth))
        for epoch, loss in enumerate(losses, start=1)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=DEFAULT_URL, help="where the service is")
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("layers", "device", "epoch", "train_loss", "seconds", "parameters"))
    with Client(parser.parse_args().url, None) as client:
        for depth in DEPTHS:
            table.writerows(rows_of(client, depth))


if __name__ == "__main__":
    main()
