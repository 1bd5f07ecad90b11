"""A script as anybody writes it, in the ways that scripts of a day have: it trains nothing and takes the time of it."""

import argparse
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=800)
parser.add_argument("--epochs", type=int, help="print one line an epoch instead of one for ten steps")
parser.add_argument("--quiet-seconds", type=float, help="print nothing for so long, and end")
parser.add_argument("--fail-at", type=int)
parser.add_argument("--hang-at", type=int)
parser.add_argument("--stop-at", type=int, help="stop early")
options = parser.parse_args()

STEP_SECONDS, EPOCH_SECONDS, STEPS_A_LINE = 0.05, 1.2, 10


def loss(progress: float) -> str:
    """Falls as losses do, with noise."""
    return f"{2 / (1 + progress) + 0.25 + random.gauss(0, 0.01):.4f}"


if options.quiet_seconds is not None:
    time.sleep(options.quiet_seconds)
    raise SystemExit
by_epochs = options.epochs is not None
count = options.epochs if by_epochs else options.steps
for number in range(1, count + 1):
    time.sleep(EPOCH_SECONDS if by_epochs else STEP_SECONDS)
    if by_epochs:
        print(f"epoch {number}/{count} loss {loss(number / 4)}", flush=True)
    elif number % STEPS_A_LINE == 0:
        print(f"step {number}/{count} loss {loss(number / 200)}", flush=True)
    if number == options.fail_at:
        raise RuntimeError(f"failed on purpose at {number}")
    if number == options.hang_at:
        time.sleep(3600)
    if number == options.stop_at:
        print("stopping early", flush=True)
        break
