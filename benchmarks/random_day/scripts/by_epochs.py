"""Prints a line for each epoch."""

import argparse
import random
import time

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--stop-at", type=int, help="stop early")
options = parser.parse_args()

for epoch in range(1, options.epochs + 1):
    time.sleep(1.2)
    print(f"epoch {epoch}/{options.epochs} loss {2 / (1 + epoch / 4) + random.gauss(0.2, 0.01):.4f}", flush=True)
    if epoch == options.stop_at:
        print("stopping early", flush=True)
        break
