"""Tells the service what is trained, layer by layer, before the first step: it calculates a speed from that.

A courtesy: a network that cannot be traced, or a service that is away, costs the job nothing but the forecast.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import torch
from torch import Tensor

from optimus_workers.errors import ServiceAway, ServiceRefused, TaskError
from optimus_workers.profiling import describe
from optimus_workers.service_client import ServiceClient
from optimus_workers.task import TrainingTask
from optimus_workers.worker.device import to_device
from optimus_workers.worker.flat import FlatModel

log = logging.getLogger(__name__)

MAX_PARAMETERS = 100_000_000
"""Larger networks are not described: tracing copies them."""
MAX_BYTES = 500_000
"""Of a description; the service takes bodies of 1 MiB."""


def tell_network(task: TrainingTask, flat: FlatModel, client: ServiceClient) -> None:
    """Describe the network here, tell the service in the background."""
    network = describe_task(task, flat)
    if network is not None:
        threading.Thread(target=_tell, args=(network, client), name="describing", daemon=True).start()


def describe_task(task: TrainingTask, flat: FlatModel) -> dict[str, Any] | None:
    """The layers of the task's network; None when that cannot be found out. Leaves the network as it was."""
    if flat.n_parameters > MAX_PARAMETERS:
        return None
    try:
        example = to_device(_first_tensor(task.batch([0])), flat.device)
        with torch.random.fork_rng(devices=[]):
            network = None if example is None else describe(flat.model, example)
    except TaskError as error:
        log.info("its layers are not told: %s", error)
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code was made for training, not for this: it may refuse
        log.info("its layers are not told: %s: %s", type(error).__name__, error)
        return None
    return network if network is not None and len(json.dumps(network)) <= MAX_BYTES else None


def _first_tensor(batch: object) -> Tensor | None:
    """What is fed to the network, by the custom that it comes first."""
    if isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    return batch if isinstance(batch, Tensor) else None


def _tell(network: dict[str, Any], client: ServiceClient) -> None:
    try:
        client.put_network(network)
    except (ServiceAway, ServiceRefused) as error:
        log.info("the service was not told the layers: %s", error)
