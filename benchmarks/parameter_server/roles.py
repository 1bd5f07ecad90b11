"""What the processes of the benchmark do. Each body gets a pipe: a number in means so many steps."""

from __future__ import annotations

import socket
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.parameter_server.serving import RULE, TOKEN
from torch.optim.sgd import sgd

from optimus_workers.wire.compression import Compression
from optimus_workers.wire.data import as_bytes, receive_into
from optimus_workers.wire.frames import CHUNK_FLOATS
from optimus_workers.wire.memory import private_floats, shareable_floats
from optimus_workers.wire.messages import Join
from optimus_workers.wire.ranges import chunks
from optimus_workers.wire.sockets import Transport, tune
from optimus_workers.worker.compression import Compressor
from optimus_workers.worker.session import DataOptions, Session

BUCKET_FLOATS = 25 * 2**20 // 4
"""DDP's default bucket, 25 MiB."""


def work(
    pipe: Connection,
    join: Join,
    n_floats: int,
    transport: Transport,
    bytes_per_second: float | None,
    compression: Compression,
) -> None:
    """The project's worker: pushes and pulls, and computes nothing."""
    torch.set_num_threads(1)
    values, push = torch.from_numpy(private_floats(n_floats)), shareable_floats(n_floats)
    gradient = torch.from_numpy(push.floats).fill_(1e-3)
    compressor = None if compression is Compression.NONE else Compressor(compression, n_floats)
    session = Session(join, n_floats, DataOptions(transport, bytes_per_second), compressor)
    session.open(TOKEN, values, push)
    session.fetch(values)
    session.version = join.version
    step = 0
    while n_steps := pipe.recv():
        used = time.process_time()
        seconds = []
        for _ in range(n_steps):
            started_at = time.perf_counter()
            session.begin_push(step, 0.1, gradient)
            session.finish_push()
            session.wait()
            seconds.append(time.perf_counter() - started_at)
            step += 1
        pipe.send((seconds, time.process_time() - used))


def all_reduce(pipe: Connection, rank: int, n_ranks: int, store: str, n_floats: int, bucketed: bool) -> None:
    """One rank of DDP after its backward pass: the gradient all-reduced by gloo, then the fused update."""
    torch.set_num_threads(1)
    if n_ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks)
    parameters, momentum, gradient = (torch.full((n_floats,), value) for value in (0.01, 0.01, 0.0))
    size = BUCKET_FLOATS if bucketed else n_floats
    buckets = [gradient[first : first + size] for first in range(0, n_floats, size)]
    while n_steps := pipe.recv():
        used = time.process_time()
        seconds = []
        for _ in range(n_steps):
            started_at = time.perf_counter()
            if n_ranks > 1:
                for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
                    work.wait()
            _update(parameters, gradient, momentum)
            seconds.append(time.perf_counter() - started_at)
        pipe.send((seconds, time.process_time() - used))


def _update(parameters: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor) -> None:
    sgd(
        [parameters], [gradient], [momentum], fused=True, weight_decay=0.0, momentum=RULE.momentum, lr=0.1,
        dampening=0.0, nesterov=False, maximize=False,
    )  # fmt: skip


def echo(pipe: Connection, n_clients: int, n_floats: int) -> None:
    """Sends back each chunk as it is: what the sockets of this machine can do at best."""
    torch.set_num_threads(1)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    pipe.send(listener.getsockname()[:2])
    threads = [
        threading.Thread(target=_echo, args=(listener.accept()[0], n_floats), daemon=True) for _ in range(n_clients)
    ]
    for thread in threads:
        thread.start()
    while pipe.recv():
        used = time.process_time()
        pipe.recv()
        pipe.send((0, time.process_time() - used))


def _echo(connection: socket.socket, n_floats: int) -> None:
    tune(connection)
    view = as_bytes(np.zeros(n_floats, np.float32))
    while True:
        for first, end in chunks(0, n_floats, n_floats):
            receive_into(connection, view[4 * first : 4 * end])
            connection.sendall(view[4 * first : 4 * end])


def call(pipe: Connection, addresses: list[tuple[str, int]], ranges: list[tuple[int, int]], n_floats: int) -> None:
    """Sends a vector to echo processes, a range to each, while what comes back is received."""
    torch.set_num_threads(1)
    source, target = as_bytes(np.ones(n_floats, np.float32)), as_bytes(np.ones(n_floats, np.float32))
    connections = [socket.create_connection(address) for address in addresses]
    for connection in connections:
        tune(connection)
    while n_steps := pipe.recv():
        used = time.process_time()
        threads = []
        for connection, (first, end) in zip(connections, ranges, strict=True):
            views = source[4 * first : 4 * end], target[4 * first : 4 * end]
            threads.append(threading.Thread(target=_send_often, args=(connection, views[0], n_steps)))
            threads.append(threading.Thread(target=_receive_often, args=(connection, views[1], n_steps)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipe.send(([], time.process_time() - used))


def _send_often(connection: socket.socket, view: memoryview, n_times: int) -> None:
    for _ in range(n_times):
        for first in range(0, len(view), CHUNK_FLOATS * 4):
            connection.sendall(view[first : first + CHUNK_FLOATS * 4])


def _receive_often(connection: socket.socket, view: memoryview, n_times: int) -> None:
    for _ in range(n_times):
        for first in range(0, len(view), CHUNK_FLOATS * 4):
            receive_into(connection, view[first : first + CHUNK_FLOATS * 4])
