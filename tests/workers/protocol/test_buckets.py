"""Chunks of a push leave when all gradients in them are final, in one order, each once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from optimus_workers.wire.ranges import Range, aligned
from optimus_workers.worker.buckets import AccumulatedTwice, Buckets, GradientHooks, contiguous, push_order


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Range], list[Range], int]:
    """Chunks, parameters in an order of their own, and where the parameters end."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12))
    parameters = list(pairwise([0, *accumulate(sizes)]))
    parameter_floats = aligned(sum(sizes)) or 16
    total = parameter_floats + 16 * draw(st.integers(0, 3))
    bounds = sorted({0, parameter_floats, total, *draw(st.lists(st.integers(0, total), max_size=6))})
    return list(pairwise(bounds)), draw(st.permutations(parameters)), parameter_floats


@given(layouts(), st.data())
def test_chunks_leave_once_in_order_and_never_before_their_gradients(
    layout: tuple[list[Range], list[Range], int], data: st.DataObject
) -> None:
    chunks, parameters, parameter_floats = layout
    order = push_order(chunks, parameters, parameter_floats)
    assert sorted(order) == sorted(chunks)
    sent: list[Range] = []
    final = [False] * len(parameters)

    def send(ready: Sequence[Range]) -> None:
        sent.extend(ready)

    buckets = Buckets(order, parameters, parameter_floats, send)
    for _ in range(2):  # a second push begins anew
        sent.clear()
        final = [False] * len(parameters)
        buckets.begin()
        for place in data.draw(st.permutations(range(len(parameters)))):
            final[place] = True
            buckets.gradient_ready(place)
            assert order[-1] not in sent, "nobody completes a step that is not computed"
            for first, end in sent:
                assert end <= parameter_floats, "buffers are never early"
                assert all(done for done, (a, b) in zip(final, parameters, strict=True) if max(a, first) < min(b, end))
        buckets.finish()
        assert sent == order


def test_the_last_layer_leaves_first() -> None:
    chunks = [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert push_order(chunks, [(0, 15), (15, 30)], 30) == [(20, 30), (10, 20), (0, 10), (30, 40)]
    grouped = [(15, 30), (0, 15)]  # the model's first parameter lies behind its second one
    assert push_order(chunks, grouped, 30) == [(0, 10), (20, 30), (10, 20), (30, 40)]


def test_neighbours_become_one() -> None:
    assert contiguous([(20, 30), (10, 20), (30, 40), (50, 60)]) == [(10, 40), (50, 60)]
    assert contiguous([]) == []


class Tied(nn.Module):
    """One matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.last(self.second(torch.tanh(self.first(inputs))))
        return output


def test_gradients_are_told_when_they_are_final_tied_ones_once() -> None:
    model = Tied()
    parameters = list(model.parameters())
    hooks = GradientHooks(parameters)
    told: list[tuple[int, Tensor]] = []

    def tell(place: int) -> None:
        gradient = parameters[place].grad
        assert gradient is not None
        told.append((place, gradient.clone()))

    for number in range(3):
        model.zero_grad()
        with hooks.reporting(tell):
            torch.autograd.backward(model(torch.ones(2, 4)).sum())
        assert len(told) == number * len(parameters), "the first pass is only watched"
    assert hooks.is_reliable
    for place, gradient in told[-3:]:
        final = parameters[place].grad
        assert final is not None
        assert torch.equal(gradient, final)


def twice(model: nn.Linear, inputs: Tensor) -> Tensor:
    """Two backward passes within one, each of which accumulates into the same weights."""
    half: Tensor = checkpoint(model, inputs, use_reentrant=True)
    output: Tensor = checkpoint(model, half, use_reentrant=True)
    return output.sum()


def test_gradients_that_are_made_in_several_parts_are_never_told() -> None:
    model = nn.Linear(3, 3)
    hooks = GradientHooks(list(model.parameters()))
    told: list[int] = []
    for _ in range(3):
        with hooks.reporting(told.append):
            torch.autograd.backward(twice(model, torch.ones(1, 3, requires_grad=True)))
    assert not hooks.is_reliable
    assert told == []


def test_a_gradient_that_changes_after_it_was_told_ends_the_pass() -> None:
    model = nn.Linear(3, 3)
    hooks = GradientHooks(list(model.parameters()))
    inputs = torch.ones(1, 3, requires_grad=True)
    with hooks.reporting(lambda _: None):
        torch.autograd.backward(model(inputs).sum())
    with pytest.raises(AccumulatedTwice), hooks.reporting(lambda _: None):
        torch.autograd.backward(twice(model, inputs))
    told: list[int] = []
    with hooks.reporting(told.append):
        torch.autograd.backward(twice(model, inputs))
    assert told == [], "from then on the whole push waits for the end"
