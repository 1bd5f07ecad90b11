"""The speed of a job that has not run yet: layer costs over device speed, plus the exchange of the gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from optimus_models.analytic.communication import Scheme, exchange_seconds
from optimus_models.analytic.cost import NetworkCost
from optimus_models.analytic.devices import Device

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
