"""Prints a line for ten steps. Like its neighbours it trains nothing and takes the time of it."""

import argparse
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=800)
parser.add_argument("--fail-at", type=int)
parser.add_argument("--hang-at", type=int)
parser.add_argument("--stop-at", type=int, help="stop early")
options = parser.parse_args()

for step in range(1, options.steps + 1):
    time.sleep(0.05)
    if step % 10 == 0:
        print(f"step {step}/{options.steps} loss {2 / (1 + step / 200) + random.gauss(0.3, 0.01):.4f}", flush=True)
    if step == options.fail_at:
        raise RuntimeError(f"failed on purpose at step {step}")
    if step == options.hang_at:
        time.sleep(3600)
    if step == options.stop_at:
        print("stopping early", flush=True)
        break
