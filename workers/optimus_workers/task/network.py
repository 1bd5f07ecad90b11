"""The layers of a network as plain data that needs no torch to be read, for the service's forecast of the speed.

    json.dumps(describe(model, torch.zeros(1, 3, 32, 32)))

The format, `optimus-network/1`, is the one that the service's analytic model reads (docs/study.md): it predicts a
job's speed before the first step runs. The module is traced symbolically (`torch.fx`) and run once on one example.
Layers whose cost follows from their shape are written as such; everything else as what torch counts.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from optimus_workers.errors import ServiceAway, ServiceRefused, TaskError
from optimus_workers.service_client import ServiceClient
from optimus_workers.task.definition import TrainingTask

log = logging.getLogger(__name__)

FORMAT = "optimus-network/1"

Row = dict[str, Any]

_ELEMENTWISE = (
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.LeakyReLU,
    nn.Dropout,
    nn.Dropout2d,
    nn.Softmax,
    nn.Identity,
)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
_PRODUCTS = ("matmul", "mm", "einsum", "linear", "conv", "attention", "dot", "mv", "tensordot", "bilinear")
"""Words in the names of torch functions that multiply matrices."""
_SUMS = {"add", "add_", "iadd"}
_JOINS = {"cat", "concat", "concatenate"}


def describe(model: nn.Module, example: Tensor, name: str | None = None) -> dict[str, Any]:
    """The description of `model`; `example` is a batch of one. Leaves the module as it was.

    Raises `TaskError` when the module cannot be traced: its control flow depends on the data.
    """
    still = copy.deepcopy(model).eval()
    try:
        graph = fx.symbolic_trace(still)
    except Exception as error:  # tracing runs the user's code: anything may come out of it
        raise TaskError(f"{type(model).__name__} cannot be traced: {error}") from error
    recorder = _Recorder(graph)
    with torch.no_grad():
        recorder.run(example)
    return {"format": FORMAT, "name": name or type(model).__name__, "layers": recorder.rows}


class _Recorder(fx.Interpreter):
    """Runs the graph and writes a row for each node that gives a tensor."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.rows: list[Row] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._seen: set[int] = set()
        """Parameters that a row has counted: a shared one costs once."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        tensor = result[0] if isinstance(result, tuple) and result else result
        if n.op != "output" and isinstance(tensor, Tensor):
            self._shapes[n.name] = tuple(tensor.shape[1:])
            self._write(n)
        return result

    def _counted(self, node: fx.Node) -> int:
        """Multiply-adds of a node that nothing is known of, as torch counts them when it is run once more.

        Done only where there can be any: counting makes torch import its compiler, which takes a second.
        """
        if node.op == "call_module":
            may_multiply = any(True for _ in self._module(node).parameters())
        else:
            target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            may_multiply = any(word in target for word in _PRODUCTS)
        if not may_multiply:
            return 0
        with FlopCounterMode(display=False) as counter:
            super().run_node(node)
        return int(counter.get_total_flops()) // 2

    def _write(self, node: fx.Node) -> None:
        parents = [parent.name for parent in node.all_input_nodes if parent.name in self._shapes]
        row = self._known(node, parents)
        if row is None:
            shape = list(self._shapes[node.name])
            parameters, multiply_adds = self._fresh(node), self._counted(node)
            row = {"kind": "counted", "shape": shape, "parameters": parameters, "multiply_adds": multiply_adds}
        self.rows.append({"name": node.name, "parents": parents, **row})

    def _known(self, node: fx.Node, parents: list[str]) -> Row | None:
        """The row of a layer whose cost follows from its shape, if it is one."""
        if node.op == "placeholder":
            return {"kind": "input", "shape": list(self._shapes[node.name])}
        inputs = [self._shapes[parent] for parent in parents]
        shape = self._shapes[node.name]
        if node.op == "call_module":
            module = self._module(node)
            row = _module_row(module, inputs[0] if inputs else (), shape)
            fresh = {id(parameter) for parameter in module.parameters()}
            if row is None or fresh & self._seen:
                return None
            self._seen |= fresh
            return row
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if target in _SUMS and len(set(inputs)) == 1 and len(inputs) > 1:
            return {"kind": "add"}
        return {"kind": "concatenate"} if target in _JOINS and _joins_channels(inputs, shape) else None

    def _module(self, node: fx.Node) -> nn.Module:
        assert isinstance(node.target, str)
        return self.module.get_submodule(node.target)

    def _fresh(self, node: fx.Node) -> int:
        """Parameters of the node that no row has counted yet."""
        parameters: list[Tensor] = []
        if node.op == "call_module":
            parameters = list(self._module(node).parameters())
        elif node.op == "get_attr" and isinstance(value := self.fetch_attr(str(node.target)), nn.Parameter):
            parameters = [value]
        new = {id(parameter): parameter.numel() for parameter in parameters if id(parameter) not in self._seen}
        self._seen |= set(new)
        return sum(new.values())


def _joins_channels(inputs: list[tuple[int, ...]], shape: tuple[int, ...]) -> bool:
    apart = all(len(other) == len(shape) and other[1:] == shape[1:] for other in inputs)
    return apart and sum(other[0] for other in inputs) == shape[0]


# --- modules ---------------------------------------------------------------------------------------------------------


def _module_row(module: nn.Module, before: tuple[int, ...], after: tuple[int, ...]) -> Row | None:
    """What a module is, from shapes of one example before and after it; None if its cost has to be counted."""
    if isinstance(module, nn.Conv2d):
        return _convolution(module)
    if isinstance(module, nn.Linear):
        return _linear(module) if len(before) == 1 else None
    if isinstance(module, _NORMS):
        return _norm(module, before)
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        return _pooling(module)
    if isinstance(module, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d):
        return _whole_image(before) if after[1:] == (1, 1) else None
    return {"kind": "elementwise"} if isinstance(module, _ELEMENTWISE) and before == after else None


def _convolution(module: nn.Conv2d) -> Row | None:
    padding = module.padding if isinstance(module.padding, str) else list(module.padding)
    if prod(module.dilation) != 1:
        return None
    return {
        "kind": "convolution",
        "channels": module.out_channels,
        "kernel": list(module.kernel_size),
        "stride": list(module.stride),
        "padding": padding,
        "bias": module.bias is not None,
        "groups": module.groups,
    }


def _linear(module: nn.Linear) -> Row:
    return {"kind": "linear", "features": module.out_features, "bias": module.bias is not None}


def _norm(module: nn.Module, before: tuple[int, ...]) -> Row | None:
    """Two parameters per channel, whatever is averaged over."""
    n_parameters = sum(parameter.numel() for parameter in module.parameters())
    return {"kind": "batch_norm", "scale": True} if n_parameters == 2 * before[0] else None


def _pooling(module: nn.MaxPool2d | nn.AvgPool2d) -> Row | None:
    dilation = getattr(module, "dilation", 1)
    if module.ceil_mode or dilation not in (1, (1, 1)):
        return None
    sizes = {"kernel": module.kernel_size, "stride": module.stride, "padding": module.padding}
    return {"kind": "pooling", **{key: _pair(value) for key, value in sizes.items()}}


def _whole_image(before: tuple[int, ...]) -> Row:
    """One value per channel."""
    size = list(before[1:])
    return {"kind": "pooling", "kernel": size, "stride": size, "padding": "valid"}


def _pair(value: int | tuple[int, ...]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


# --- the description that a worker sends ------------------------------------------------------------------------------

MAX_PARAMETERS = 100_000_000
"""Larger networks are not described: tracing copies them."""
MAX_BYTES = 500_000
"""Size of a description as JSON; the service takes bodies of 1 MiB."""


def report_network(task: TrainingTask, model: nn.Module, client: ServiceClient) -> None:
    """Describe the network of `task` before the first step and send the description in the background.

    A network that cannot be traced, or a service that is away, costs the job nothing but the forecast.
    """
    network = describe_task(task, model)
    if network is not None:
        threading.Thread(target=_send_network, args=(network, client), name="network-report", daemon=True).start()


def describe_task(task: TrainingTask, model: nn.Module) -> dict[str, Any] | None:
    """The layers of the task's network; None when they cannot be found out. Leaves the network as it was."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if sum(parameter.numel() for parameter in trained) > MAX_PARAMETERS:
        return None
    try:
        example = _first_tensor(task.batch([0]))
        with torch.random.fork_rng(devices=[]):
            network = None if example is None else describe(model, example.to(trained[0].device))
    except TaskError as error:
        log.info("the network is not described: %s", error)
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code was made for training, not for this: it may refuse
        log.info("the network is not described: %s: %s", type(error).__name__, error)
        return None
    return network if network is not None and len(json.dumps(network)) <= MAX_BYTES else None


def _first_tensor(batch: object) -> Tensor | None:
    """The network's input, which by custom comes first."""
    if isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    return batch if isinstance(batch, Tensor) else None


def _send_network(network: dict[str, Any], client: ServiceClient) -> None:
    try:
        client.put_network(network)
    except (ServiceAway, ServiceRefused) as error:
        log.info("the description of the network did not arrive: %s", error)
