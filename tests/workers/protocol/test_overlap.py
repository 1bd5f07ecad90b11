"""Pushing while the backward pass goes on changes nothing but the time: bit for bit the same parameters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from optimus_workers.server.run import DataListener
from optimus_workers.server.service import ShardService, make_shard
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.telemetry.usage import CpuPacer
from optimus_workers.wire.messages import Assume, Join
from optimus_workers.wire.ranges import server_ranges, worker_micro_batches
from optimus_workers.wire.sockets import Transport
from optimus_workers.wire.values import ServerRange
from optimus_workers.worker.buckets import GradientHooks
from optimus_workers.worker.compute import Batches, compute_micro_batches, sync_micro_batches
from optimus_workers.worker.flat_model import FlatModel, task_profile
from optimus_workers.worker.session import DataOptions, Session
from optimus_workers.worker.staging import DeviceStaging, DirectStaging, Staging, Wait, stage

TOKEN = "secret"
WIDTH = 600
N_STEPS = 4
Stage = Callable[[Tensor, Tensor], Staging]


class NoStreams:
    """Each copy is through when its call is: a device without streams."""

    def mark(self) -> None:
        """Everything is through at all times."""

    def copy_down(self, targets: Sequence[Tensor], sources: Sequence[Tensor], after: None) -> Wait:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        return lambda: None

    def copy_up(self, target: Tensor, source: Tensor, after: None) -> None:
        target.copy_(source)

    def await_copies_up(self) -> None:
        """They are through."""


class Network(nn.Module):
    """1.1 million parameters; the first layer's backward pass needs the last layer's weights, whose own gradient is
    final long before."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        scaled = self.first(inputs) * self.last.weight.detach().mean(0)
        output: Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.norm(scaled)))))
        return output


def task() -> TrainingTask:
    examples = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))

    def noisy(items: list[tuple[Tensor]]) -> Tensor:
        batch = torch.stack([item for (item,) in items])
        return batch + 0.1 * torch.randn(batch.shape)  # augmentation

    return TrainingTask(
        model=Network,
        loss=lambda model, batch: (nn.functional.dropout(model(batch), 0.2) - batch).square().mean(),
        dataset=TensorDataset(examples),
        collate=noisy,
        optimizer=OptimizerSpec(learning_rate=0.5, momentum=0.9),
        global_batch_size=16,
        micro_batches=4,
    )


@contextmanager
def servers(n_servers: int, n_workers: int, flat: FlatModel) -> Iterator[tuple[ServerRange, ...]]:
    profile = task_profile(task(), flat)
    with ExitStack() as stack:
        found = []
        for first, end in server_ranges(flat.total_floats, n_servers):
            service = ShardService(CpuPacer(None))
            service.epoch = 1
            service.candidate = make_shard(Assume(1, 0, first, end, profile, n_workers, False, (), n_servers), None)
            failures: list[BaseException] = []
            listener = DataListener("127.0.0.1", TOKEN, service, failures.append)
            listener.start()
            stack.callback(listener.close)
            stack.callback(service.halt, 2)
            found.append(ServerRange(listener.address, first, end, listener.local))
        yield tuple(found)


class Worker:
    """What `Training` does in a step, without a coordinator."""

    def __init__(self, rank: int, n_workers: int, stage: Stage) -> None:
        self.task, self.rank, self.n_workers = task(), rank, n_workers
        self.flat = FlatModel(self.task.build_model(0), staging=stage)
        self.hooks = GradientHooks(self.flat.trained)
        self.n_early = 0

    def train(self, found: tuple[ServerRange, ...], transport: Transport, overlap: bool) -> None:
        flat = self.flat
        slots = worker_micro_batches(self.task.micro_batches, self.rank, self.n_workers)
        join = Join(1, 0, self.rank, self.n_workers, *slots, found, False, self.rank == 0)
        session = Session(
            join, flat.parameter_floats, DataOptions(transport), None, None,
            flat.parameter_ranges if overlap else (), flat.staging,
        )  # fmt: skip
        try:
            session.open(TOKEN, flat.values, flat.push_memory)
            session.fetch(flat.values)
            session.version = 0
            for step in range(N_STEPS):
                self.step(session, step, overlap)
        finally:
            session.close()

    def step(self, session: Session, step: int, overlap: bool) -> None:
        def tell(place: int) -> None:
            self.n_early += 1
            session.gradient_ready(place)

        flat, join = self.flat, session.join
        session.begin_push(step, 0.5, flat.push)
        slots = sync_micro_batches(self.task, 3, step, join.first_slot, join.end_slot)
        last_pass = self.hooks.reporting(tell) if overlap else nullcontext()
        # torch has one random generator, and these workers are threads of one process.
        with RANDOM:
            compute_micro_batches(self.task, flat, slots, lambda: None, last_pass=last_pass)
        flat.staging.end()
        session.finish_push()
        session.wait()


RANDOM = threading.Lock()


def trained(
    n_workers: int, n_servers: int, transport: Transport, *, overlap: bool, stage: Stage = DirectStaging
) -> Worker:
    """Worker 0 after some steps."""
    workers = [Worker(rank, n_workers, stage) for rank in range(n_workers)]
    with servers(n_servers, n_workers, workers[0].flat) as found, ThreadPoolExecutor(n_workers) as pool:
        for future in [pool.submit(each.train, found, transport, overlap) for each in workers]:
            future.result(60)
    for each in workers:
        assert (each.n_early > 0) == overlap
        assert torch.equal(each.flat.values, workers[0].flat.values)
    return workers[0]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("n_workers", "n_servers"), [(1, 1), (2, 2), (4, 1)])
def test_overlap_changes_no_bit_however_it_travels(n_workers: int, n_servers: int) -> None:
    expected = trained(n_workers, n_servers, Transport.TCP, overlap=False).flat.values
    assert expected[: WIDTH * WIDTH].std() > 0
    for transport in (Transport.TCP, Transport.AUTO):
        assert torch.equal(trained(n_workers, n_servers, transport, overlap=True).flat.values, expected)


@pytest.mark.parametrize("transport", [Transport.TCP, Transport.AUTO])
def test_parameters_that_are_in_use_are_not_written_to(transport: Transport) -> None:
    flat = FlatModel(task().build_model(0))
    with servers(1, 1, flat) as found:
        join = Join(1, 0, 0, 1, 0, 4, found, False, True)
        ranges = flat.parameter_ranges
        session = Session(join, flat.parameter_floats, DataOptions(transport), parameters=ranges, staging=flat.staging)
        session.open(TOKEN, flat.values, flat.push_memory)
        session.fetch(flat.values)
        session.version = 0
        flat.push.fill_(1.0)
        before = flat.values.clone()
        session.begin_push(0, 0.5, flat.push)
        for place in range(len(ranges) - 1, 0, -1):  # all but the first layer's weights
            session.gradient_ready(place)
        (link,) = session._servers
        assert within(60.0, lambda: link.first_byte_at > 0), "the server answers what it has"
        assert not within(0.2, lambda: not torch.equal(flat.values, before))
        session.finish_push()
        session.wait()
        assert torch.equal(flat.values[: flat.n_parameters], before[: flat.n_parameters] - 0.5)
        session.close()


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether it came true."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            return False
    return True


def test_vectors_of_their_own_change_no_bit() -> None:
    """What a GPU needs, with copies that the CPU makes."""
    stage = partial(DeviceStaging, device=torch.device("cpu"), streams=NoStreams())
    expected = trained(2, 2, Transport.TCP, overlap=True).flat
    for overlap in (False, True):
        found = trained(2, 2, Transport.AUTO, overlap=overlap, stage=stage).flat
        assert torch.equal(found.values, expected.values)
        assert torch.equal(found.staging.values, expected.values), "and the model has them"
        assert found.staging.values.data_ptr() != found.values.data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("overlap", [False, True])
def test_streams_of_a_gpu_lose_nothing(overlap: bool) -> None:
    """Two workers that share it. Dropout draws other numbers there than on a CPU, so the CPU's steps are repeated by a
    copy of the same vectors without streams."""
    device = torch.device("cuda", 0)
    without = partial(DeviceStaging, device=device, streams=NoStreams())
    expected = trained(2, 2, Transport.TCP, overlap=overlap, stage=without).flat
    found = trained(2, 2, Transport.AUTO, overlap=overlap, stage=partial(stage, device)).flat
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-5)
    torch.cuda.synchronize(device)
    assert torch.equal(found.staging.values.cpu(), found.values), "and the model has them"


def test_batches_fetched_ahead_are_those_fetched_in_time() -> None:
    """Random changes to examples and dropout included."""
    the_task = task()
    results = []
    for n_ahead in (0, 3):
        flat = FlatModel(the_task.build_model(0))
        batches = Batches(the_task, flat.device)
        slots = sync_micro_batches(the_task, 3, 0, 0, 4)
        batches.fetch_ahead(slots, partial(next, iter([False] * n_ahead + [True])))
        compute_micro_batches(the_task, flat, slots, lambda: None, batches=batches)
        results.append(flat.push.clone())
    assert results[0].abs().sum() > 0
    assert torch.equal(*results)


def test_what_was_fetched_for_another_step_is_dropped() -> None:
    calls = 0
    the_task = task()

    def count(items: list[tuple[Tensor]]) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.stack([item for (item,) in items])

    object.__setattr__(the_task, "collate", count)
    batches = Batches(the_task, torch.device("cpu"))
    first, second = sync_micro_batches(the_task, 3, 0, 0, 2), sync_micro_batches(the_task, 3, 1, 0, 2)
    batches.fetch_ahead(first, lambda: False)
    batches.fetch_ahead(second, lambda: False)
    batches.fetch_ahead(second, lambda: False)
    assert calls == 4
    batches.take(second[0])
    assert calls == 4
    batches.take(first[0])
    assert calls == 5
