"""What all-reduce workers are made of: the rendezvous they meet at, the sum of their gradients, their connections."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from optimus_workers.allreduce import gloo_sockets
from optimus_workers.allreduce.gradients import GroupCompression, SharedGradients
from optimus_workers.allreduce.process_group import AbortableOperations, ProcessGroup
from optimus_workers.allreduce.rendezvous import Rendezvous, RendezvousStore
from optimus_workers.errors import ConnectionOver, WireError
from optimus_workers.wire.messages import Publish, Published


def test_what_one_says_the_others_read() -> None:
    said: list[Publish] = []
    ours, theirs = Rendezvous(said.append), Rendezvous(lambda _: None)
    RendezvousStore(ours, 3).set("1//key", b"\x00\xff")
    assert said == [Publish(3, "key", "00ff")]
    theirs.received(Published(said[0].epoch, said[0].key, said[0].value))
    store = RendezvousStore(theirs, 3)
    store.wait(["0//key"])
    assert store.get("key") == RendezvousStore(ours, 3).get("key") == b"\x00\xff"
    assert store.check(["key"])
    assert not RendezvousStore(theirs, 4).check(["key"])
    with pytest.raises(WireError, match="hexadecimal"):
        theirs.received(Published(3, "key", "no"))


def test_nobody_waits_for_the_members_of_a_membership_that_is_over() -> None:
    rendezvous = Rendezvous(lambda _: None)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            rendezvous.wait(7, "key")
        except ConnectionOver as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    rendezvous.close(7)
    waiting.join(30)
    assert len(errors) == 1
    rendezvous.received(Published(7, "key", "00"))
    assert rendezvous.published(7, "") == [], "late words are not kept"
    with pytest.raises(ConnectionOver):
        rendezvous.wait(8, "key", timeout_seconds=0.01)


def test_connections_of_a_group_are_told_from_others_and_ended() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as ours,
        closing(socket.create_server(("127.0.0.1", 0))) as foreign,
    ):
        assert {ours.getsockname(), foreign.getsockname()} <= gloo_sockets.listening()
        with (
            closing(socket.create_connection(ours.getsockname())) as out,
            closing(socket.create_connection(foreign.getsockname())) as other,
        ):
            accepted, _ = ours.accept()
            assert gloo_sockets.count(ours.getsockname(), ()) == 1
            assert gloo_sockets.count(("127.0.0.1", 1), {ours.getsockname()}) == 1
            assert gloo_sockets.hang_up(ours.getsockname(), ()) == 1
            assert out.recv(1) == b""
            other.sendall(b"x")
            accepted.close()


@pytest.fixture
def alone() -> Iterator[ProcessGroup]:
    """A process group of one member."""
    group = ProcessGroup(Rendezvous(lambda _: None), 1, 0, 1, "127.0.0.1", torch.device("cpu"))
    group.open()
    yield group
    group.close()
    assert not dist.is_initialized()


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output.square().mean()


class Halves(nn.Module):
    """Uses one of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.used(batch)
        return output


@pytest.mark.parametrize("compression", list(GroupCompression))
def test_gradients_of_all_slots_are_summed_even_where_a_loss_does_not_depend_on_all(
    compression: GroupCompression, alone: ProcessGroup
) -> None:
    torch.manual_seed(3)
    model, batches = Halves(), torch.randn(3, 5, 4)
    n_ready = 0

    def ready() -> None:
        nonlocal n_ready
        n_ready += 1

    parameters = list(model.used.parameters())
    expected = torch.autograd.grad(torch.stack([_mean_square(model, batch) for batch in batches]).sum(), parameters)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    kept = [parameter.grad for parameter in model.parameters()]
    shared = SharedGradients(model, _mean_square, compression, ready, alone.guard)
    for _ in range(2):  # from the second step on DDP's buckets are in the order in which gradients become ready
        for gradient in kept:
            gradient.zero_()  # type: ignore[union-attr]
        shared.begin(len(batches))
        for batch in batches:
            torch.autograd.backward(shared.loss(model, batch))
        for parameter, gradient in zip(parameters, expected, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-2, atol=1e-3)
        assert all(not parameter.grad.any() for parameter in model.unused.parameters() if parameter.grad is not None)
    assert n_ready == 2
    shared.take_part()
    assert n_ready == 3
    shared.close()
    torch.autograd.backward(_mean_square(model, batches[0]))
    assert n_ready == 3, "the model is as it was"


def test_a_group_that_was_aborted_is_broken_and_says_so(alone: ProcessGroup) -> None:
    assert not alone.is_broken
    alone.abort()
    assert alone.is_broken
    alone.close()
    with pytest.raises(ConnectionOver):
        ProcessGroup(Rendezvous(lambda _: None), 2, 0, 1, "203.0.113.1", torch.device("cpu")).open()


@pytest.mark.parametrize("begun_after_the_end", [False, True])
def test_an_operation_that_never_ends_holds_up_nobody_once_the_group_is_over(begun_after_the_end: bool) -> None:
    operations, endless = AbortableOperations(), torch.futures.Future[Tensor]()
    if begun_after_the_end:
        operations.abort(0.01)
        operations.close()
        assert not operations.is_stuck
    guarded = operations.guard(endless)
    if not begun_after_the_end:
        operations.abort(0.01)
    with pytest.raises(RuntimeError, match="the process group is over"):
        guarded.wait()
    operations.close()
    assert operations.is_stuck
    endless.set_result(torch.ones(1))  # late, and nobody's concern


def test_nobody_waits_for_a_stopped_member_when_the_group_is_over() -> None:
    """gloo itself never gives up what it has still to send."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("stopped_member.py"))], check=True, timeout=240)
