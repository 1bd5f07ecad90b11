"""A parameter server of the benchmark, in a process that imports no more than the real one does: no torch."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

from optimus_workers.server.range_state import RangeState
from optimus_workers.server.run import DataListener
from optimus_workers.server.service import ShardService, make_shard
from optimus_workers.telemetry.usage import CpuPacer
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.sockets import share_of_rate
from optimus_workers.wire.values import ServerRange, TaskProfile, UpdateRule

TOKEN = "benchmark"
EPOCH = 1
RULE = UpdateRule("sgd", 0.9, False, 0.0, (0.9, 0.999), 1e-8)
N_SECTIONS = 2
"""Parameters and momentum."""


def profile(n_floats: int) -> TaskProfile:
    """Of a job that does nothing but exchange."""
    return TaskProfile(n_floats, n_floats, n_floats, 1000, 10, 12, RULE)


def serve(pipe: Connection, assume: Assume, bytes_per_second: float | None) -> None:
    """The project's parameter server, without its control connection."""
    service = ShardService(CpuPacer(None))
    service.epoch = EPOCH
    service.connection_rate = share_of_rate(bytes_per_second, assume.n_workers, assume.n_servers)
    state = RangeState.zeros(0, assume.first, assume.end, N_SECTIONS)
    for section in state.sections:
        section.fill(0.01)
    service.candidate = make_shard(assume, state)
    listener = DataListener("127.0.0.1", TOKEN, service, lambda _: os._exit(1))
    listener.start()
    pipe.send(ServerRange(listener.address, assume.first, assume.end, listener.local))
    while pipe.recv():
        used = time.process_time()
        pipe.recv()  # the steps are over
        pipe.send((memory_bytes(), time.process_time() - used))


def memory_bytes() -> int:
    """All that this process has in memory: interpreter, libraries and what it shares included."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
