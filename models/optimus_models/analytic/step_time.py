"""The speed of a job that has not run yet: layer costs over device speed, plus the exchange of the gradient.

Devices have the peak speed of their makers' data sheets (single precision, dense). An exchange costs rounds of latency
and bytes through the busiest link. For w workers, a gradient of S bytes, links of B bytes/s each way (full duplex) and
a latency of L seconds:

| scheme | rounds | bytes through the busiest link, one way |
|---|---|---|
| `parameter_server` with p servers | 2 | S · max(w/p, 1) |
| `ring` all-reduce | 2(w - 1) | 2S(w - 1)/w |
| `tree` (reduce, then broadcast) | 2 ⌈log2 w⌉ | 2S ⌈log2 w⌉ |
| `butterfly` (recursive halving and doubling) | 2 ⌈log2 w⌉ | 2S(w - 1)/w |
| `one_to_all` (everybody to one, and back) | 2 | S · (w - 1) |

References: Qi et al., ICLR 2017, section 3.2; Thakur et al., IJHPCA 2005; for the parameter server with full-duplex
pipelining, push and pull overlap and each worker still pushes the whole vector, hence max(w/p, 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, log2
from types import MappingProxyType
from typing import Literal

from optimus_models.analytic.cost import NetworkCost


@dataclass(frozen=True, slots=True)
class Device:
    """What the arithmetic needs to know of a processor."""

    name: str
    flops_per_second: float
    """Peak float32 operations per second (a multiply-add is two)."""
    memory_bytes_per_second: float


_TERA, _GIGA = 1e12, 1e9

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device("K80", 4.37 * _TERA, 240 * _GIGA),  # one of its two processors, boost clock
            Device("P100", 9.3 * _TERA, 732 * _GIGA),
            Device("V100", 15.7 * _TERA, 900 * _GIGA),
            Device("T4", 8.1 * _TERA, 320 * _GIGA),
            Device("A100", 19.5 * _TERA, 1555 * _GIGA),
            Device("H100", 66.9 * _TERA, 3350 * _GIGA),
            Device("H200", 66.9 * _TERA, 4800 * _GIGA),
            Device("TITAN X", 10.97 * _TERA, 480 * _GIGA),  # Pascal
            Device("GTX 1080 Ti", 11.34 * _TERA, 484 * _GIGA),
        )
    }
)
"""By name."""

CPU_CORE = Device("CPU core", 96 * _GIGA, 10 * _GIGA)
"""One core with 256-bit multiply-adds at 3 GHz; what training reaches of it is measured (`percent_of_peak`)."""


class Scheme(StrEnum):
    """How gradients are exchanged; the table at the top of this module says what each costs."""

    PARAMETER_SERVER = "parameter_server"
    RING = "ring"
    TREE = "tree"
    BUTTERFLY = "butterfly"
    ONE_TO_ALL = "one_to_all"


def rounds(scheme: Scheme, workers: int) -> int:
    """How many messages follow one another."""
    if workers <= 1 and scheme is not Scheme.PARAMETER_SERVER:
        return 0
    match scheme:
        case Scheme.RING:
            return 2 * (workers - 1)
        case Scheme.TREE | Scheme.BUTTERFLY:
            return 2 * ceil(log2(workers))
        case Scheme.PARAMETER_SERVER | Scheme.ONE_TO_ALL:
            return 2


def busiest_link_bytes(scheme: Scheme, workers: int, gradient_bytes: float, servers: int = 1) -> float:
    """Bytes that the busiest link carries in its busier direction."""
    w, s = workers, gradient_bytes
    match scheme:
        case Scheme.PARAMETER_SERVER:
            return s * max(w / servers, 1.0)
        case Scheme.RING | Scheme.BUTTERFLY:
            return 2.0 * s * (w - 1) / w
        case Scheme.TREE:
            return 2.0 * s * ceil(log2(w)) if w > 1 else 0.0
        case Scheme.ONE_TO_ALL:
            return s * (w - 1)


def exchange_seconds(
    scheme: Scheme,
    workers: int,
    gradient_bytes: float,
    *,
    bytes_per_second: float,
    latency_seconds: float = 0.0,
    servers: int = 1,
    compression: float = 1.0,
) -> float:
    """Seconds of one exchange; `compression` is sent bytes / gradient bytes (bf16: 0.5)."""
    carried = busiest_link_bytes(scheme, workers, gradient_bytes * compression, servers)
    return rounds(scheme, workers) * latency_seconds + carried / bytes_per_second


BACKWARD_PASSES = 2.0
"""The backward pass computes two products for each one of the forward pass: for the inputs and for the weights."""
DEFAULT_PERCENT_OF_PEAK = 0.5
"""What kernels reach of the data sheet where nothing is measured (in Paleo "platform percent of peak")."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Predicts steps per second by arithmetic (Paleo, section 3)."""

    cost: NetworkCost
    device: Device
    bytes_per_second: float
    """Each way, per node."""
    scheme: Scheme = Scheme.PARAMETER_SERVER
    latency_seconds: float = 50e-6
    percent_of_peak: float = DEFAULT_PERCENT_OF_PEAK
    compression: float = 1.0
    layer_seconds: float = 0.0
    """What each layer takes a step however small it is: launching its kernels, forward and backward. 0 in Paleo, but on
    a fast GPU networks for small images are nothing else (docs/study.md)."""

    def compute_seconds(self, batch_size: float) -> float:
        """Forward and backward pass of `batch_size` examples on one device.

        Arithmetic and memory traffic do not overlap within a layer's kernel as long as it is one or the other that
        binds: each layer costs the larger of the two.
        """
        passes = 1.0 + BACKWARD_PASSES
        speed = self.device.flops_per_second * self.percent_of_peak
        memory = self.device.memory_bytes_per_second * self.percent_of_peak
        return self.layer_seconds * len(self.cost.layers) + sum(
            max(
                2.0 * layer.multiply_adds * batch_size * passes / speed,
                (layer.moved_bytes * batch_size + 4.0 * layer.parameters) * passes / memory,
            )
            for layer in self.cost.layers
        )

    def step_seconds(
        self,
        workers: int,
        servers: int = 1,
        *,
        batch_size: float,
        scaling: Literal["strong", "weak"] = "strong",
    ) -> float:
        """Seconds of one sync step.

        `batch_size` is the global batch with strong scaling (shared among the workers) and one worker's with weak.
        """
        own = batch_size / workers if scaling == "strong" else batch_size
        return self.compute_seconds(own) + exchange_seconds(
            self.scheme,
            workers,
            self.cost.parameter_bytes,
            bytes_per_second=self.bytes_per_second,
            latency_seconds=self.latency_seconds,
            servers=servers,
            compression=self.compression,
        )

    def calibrated(self, measured_seconds: float, batch_size: float) -> ColdStart:
        """The same with the percent of peak that one measured single-device step implies."""
        full = replace(self, percent_of_peak=1.0, layer_seconds=0.0)
        percent = full.compute_seconds(batch_size) / measured_seconds
        return replace(self, percent_of_peak=percent, layer_seconds=0.0)
