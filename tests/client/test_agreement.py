"""Processes that train together stop at one step, whichever of them is asked first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.workers.protocol.conftest import free_port

LOOP = """
import itertools, time
import torch.distributed as dist
import optimus_client

dist.init_process_group("gloo")
for step in itertools.count(1):
    time.sleep(0.002 * (1 + dist.get_rank()))
    if optimus_client.stop_agreed(step):
        print(step)
        break
dist.destroy_process_group()
"""


def test_all_processes_stop_at_the_same_step_though_one_alone_is_asked(tmp_path: Path) -> None:
    asked = tmp_path / "stop"
    asked.touch()
    port = str(free_port())
    found = []
    for rank in range(2):
        stop_file = asked if rank == 1 else tmp_path / "not there"
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OPTIMUS_STOP_FILE": str(stop_file)}
        found.append(subprocess.Popen([sys.executable, "-c", LOOP], env=environment, stdout=subprocess.PIPE, text=True))
    steps = [process.communicate(timeout=120)[0].strip() for process in found]
    assert steps[0] == steps[1] != ""
