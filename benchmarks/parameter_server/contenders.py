"""The contenders of the benchmark, each as a group of processes ready to take steps."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.parameter_server import roles, serving
from benchmarks.parameter_server.groups import Group, receive

from optimus_workers.wire.compression import Compression
from optimus_workers.wire.messages import Assume, Join
from optimus_workers.wire.ranges import server_ranges, worker_micro_batches
from optimus_workers.wire.sockets import Transport


@dataclass(frozen=True, slots=True)
class Size:
    """Floats, workers, servers."""

    n_floats: int
    workers: int
    servers: int


def parameter_server(
    size: Size,
    transport: Transport,
    *,
    compression: Compression = Compression.NONE,
    bytes_per_second: float | None = None,
    realtime: bool = False,
) -> Group:
    """The project's servers and workers."""
    group = Group(realtime=realtime)
    profile = serving.profile(size.n_floats)
    pipes = []
    for first, end in server_ranges(size.n_floats, size.servers):
        assume = Assume(serving.EPOCH, 0, first, end, profile, size.workers, False, (), size.servers)
        pipes.append(group.serve_afresh(serving.serve, assume, bytes_per_second))
    servers = tuple(receive(pipe) for pipe in pipes)
    for rank in range(size.workers):
        slots = worker_micro_batches(profile.micro_batches, rank, size.workers)
        join = Join(serving.EPOCH, 0, rank, size.workers, *slots, servers, False, False)
        group.step(roles.work, join, size.n_floats, transport, bytes_per_second, compression)
    return group


def ddp(size: Size, *, bucketed: bool, realtime: bool = False) -> Group:
    """As many ranks as there are workers; servers do not count."""
    group = Group(realtime=realtime)
    store = str(group.folder / "store")
    for rank in range(size.workers):
        group.step(roles.all_reduce, rank, size.workers, store, size.n_floats, bucketed)
    return group


def loopback(size: Size, *, realtime: bool = False) -> Group:
    """The same bytes between the same number of processes, over bare TCP sockets."""
    group = Group(realtime=realtime, in_step=False)
    ranges = server_ranges(size.n_floats, size.servers)
    pipes = [group.serve(roles.echo, size.workers, end - first) for first, end in ranges]
    addresses = [receive(pipe) for pipe in pipes]
    for _ in range(size.workers):
        group.step(roles.call, addresses, ranges, size.n_floats)
    return group
