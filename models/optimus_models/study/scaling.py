"""Time, cost and efficiency against the number of workers, from the seconds of one worker's step and arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal, NamedTuple

from optimus_models.analytic import Scheme, exchange_seconds
from optimus_models.cost import Allocation, Estimate, Outlook, Prices, outlooks


class Setting(NamedTuple):
    """What a job runs with."""

    batch_size: int
    """Global batch size; one worker's with weak scaling."""
    examples: int
    """Of one epoch."""
    gradient_bytes: float
    bytes_per_second: float
    """Each way, per node."""
    prices: Prices
    latency_seconds: float = 50e-6

    @property
    def steps_per_epoch(self) -> int:
        return ceil(self.examples / self.batch_size)

    def step_seconds(self, alone_seconds: float, workers: int, servers: int, kind: Literal["strong", "weak"]) -> float:
        """`alone_seconds`: one worker's step with `batch_size` examples, without any exchange.

        Strong scaling shares the batch among the workers; weak scaling gives each the whole. Gradients then go to the
        servers and parameters come back.
        """
        gradient = alone_seconds / workers if kind == "strong" else alone_seconds
        exchange = exchange_seconds(
            Scheme.PARAMETER_SERVER,
            workers,
            self.gradient_bytes,
            bytes_per_second=self.bytes_per_second,
            latency_seconds=self.latency_seconds,
            servers=servers,
        )
        return gradient + exchange


class ScalingPoint(NamedTuple):
    """One number of workers."""

    workers: int
    examples_per_second: float
    epoch_seconds: float
    epoch_cost: float
    efficiency: float
    """Throughput over workers times the throughput of one worker that needs no exchange."""


def time_to_target(
    setting: Setting, epochs: Estimate, alone_seconds: float, gpu: str, workers: Sequence[int], servers: int
) -> tuple[Outlook, ...]:
    """Time and cost of `epochs` epochs with strong scaling, for each number of `workers`."""
    sizes = [Allocation(w, servers, gpu) for w in workers]
    steps = epochs.times(setting.steps_per_epoch)
    return outlooks(
        sizes,
        steps,
        lambda size: Estimate.exactly(1.0 / setting.step_seconds(alone_seconds, size.workers, size.servers, "strong")),
        setting.prices,
    )


def scaling(
    setting: Setting,
    alone_seconds: float,
    gpu: str,
    workers: Sequence[int],
    servers: int,
    kind: Literal["strong", "weak"],
) -> list[ScalingPoint]:
    """Throughput, time and cost of one epoch, and efficiency, for each number of `workers`."""
    alone = setting.batch_size / alone_seconds
    points = []
    for w in workers:
        step = setting.step_seconds(alone_seconds, w, servers, kind)
        throughput = setting.batch_size * (w if kind == "weak" else 1) / step
        seconds = setting.examples / throughput
        cost = seconds * setting.prices.per_second(Allocation(w, servers, gpu))
        points.append(ScalingPoint(w, throughput, seconds, cost, throughput / (w * alone)))
    return points
