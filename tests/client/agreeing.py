"""A process of a training that stops where all agree to: `python -m tests.client.agreeing SECONDS`.

It says when it trains, and after which step it stopped. A step takes so many seconds on rank 0, and more on others.
"""

from __future__ import annotations

import itertools
import sys
import time

import torch.distributed as dist

import optimus_client

if __name__ == "__main__":
    dist.init_process_group("gloo")
    sys.stdout.write("trains\n")
    sys.stdout.flush()
    for step in itertools.count(1):
        time.sleep(float(sys.argv[1]) * (1 + dist.get_rank()))
        if optimus_client.stop_agreed(step):
            sys.stdout.write(f"{step}\n")
            break
    dist.destroy_process_group()
