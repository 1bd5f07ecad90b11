"""What a job's tasks cost: prices of GPUs and cores (settings) times what one worker and one server take.

Money is in whatever currency the prices are in; a resource without a price is free.
"""

from __future__ import annotations

import math

from optimus_models.cost import SECONDS_PER_HOUR, Prices
from optimus_models.cost import Allocation as Priced
from optimus_scheduler.model import Allocation, Job, JobSpec, Resources
from optimus_scheduler.settings import Settings

_NO_GPU = ""
"""Stands for the GPU type of a CPU job."""


def has_prices(settings: Settings) -> bool:
    """Whether anything costs anything: otherwise a cost of 0 says nothing."""
    return settings.price_per_core_hour > 0 or any(price > 0 for price in settings.price_per_gpu_hour.values())


def hour_price(resources: Resources, gpu_type: str | None, settings: Settings) -> float:
    """Price of one hour of `resources`, whose GPUs, of whatever type they are asked for, are of `gpu_type`."""
    return price(resources.cpu, sum(resources.gpus.values()), gpu_type, settings)


def price(core_hours: float, gpu_hours: float, gpu_type: str | None, settings: Settings) -> float:
    """Price of so many hours of one core, and of one GPU of `gpu_type`."""
    return (
        gpu_hours * settings.price_per_gpu_hour.get(gpu_type or _NO_GPU, 0.0)
        + core_hours * settings.price_per_core_hour
    )


def job_prices(spec: JobSpec, gpu_type: str | None, settings: Settings) -> Prices:
    """What one worker (under its GPU type) and one server of this job cost, for `optimus_models.cost`."""
    worker = hour_price(spec.worker.resources, gpu_type, settings)
    return Prices({gpu_type or _NO_GPU: worker}, hour_price(spec.server.resources, None, settings))


def priced(allocation: Allocation) -> Priced:
    """The allocation as `optimus_models.cost` names it."""
    return Priced(allocation.workers, allocation.servers, allocation.gpu_type or _NO_GPU)


def cost_per_second(spec: JobSpec, allocation: Allocation, settings: Settings) -> float:
    """What the job spends in one second with `allocation`."""
    worker = hour_price(spec.worker.resources, allocation.gpu_type, settings)
    server = hour_price(spec.server.resources, None, settings)
    return (allocation.workers * worker + allocation.servers * server) / SECONDS_PER_HOUR


def seconds_of_budget(job: Job, allocation: Allocation, settings: Settings) -> float:
    """How long what is left of the job's limit of money pays for `allocation`; inf: it has no such limit, or that costs
    nothing."""
    most = job.spec.convergence.max_cost
    spends = 0.0 if most is None else cost_per_second(job.spec, allocation, settings)
    return math.inf if most is None or spends <= 0 else max(most - job.spent, 0.0) / spends


def seconds_paid(job: Job, settings: Settings) -> float:
    """The same for what the job has, or for its smallest size where it has nothing."""
    return seconds_of_budget(job, job.spec.smallest if job.allocation.is_empty else job.allocation, settings)
