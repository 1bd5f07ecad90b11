"""What the processes of a script get to know: their place, their part of the batch, their environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimus_contract.command import Launch


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place in a membership."""

    rank: int
    n_workers: int
    master: tuple[str, int]
    """Where the processes meet: host and port of worker 0."""
    restarts: int = 0
    """Memberships of this job before the present one."""


def distributed_variables(started: Launch, place: Place, local_rank: int, run_id: str) -> dict[str, str]:
    """What torchrun tells a process: its rank, of how many, and where they meet."""
    n_local = started.n_processes
    rank, world = place.rank * n_local + local_rank, place.n_workers * n_local
    return {
        "MASTER_ADDR": place.master[0],
        "MASTER_PORT": str(place.master[1]),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(n_local),
        "GROUP_RANK": str(place.rank),
        "GROUP_WORLD_SIZE": str(place.n_workers),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max(started.max_restarts or 0, place.restarts)),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def batch_variables(
    global_batch_size: int | None, world: int, rank: int = 0, *, at_once: int | None = None
) -> dict[str, str]:
    """How the global batch is divided over `world` processes, for process `rank`; none if the job does not name one.

    `at_once`: the most examples that a process computes at once; None: its whole part. The processes take as few
    accumulation steps as this allows, or up to twice as many if only then the parts are equal, so that

        world · OPTIMUS_WORKER_BATCH_SIZE · OPTIMUS_ACCUMULATION_STEPS = OPTIMUS_GLOBAL_BATCH_SIZE.

    Where no such division exists, the product is the next larger one. `OPTIMUS_BATCH_PART` is the number of examples of
    a step that are this process's own: over all processes they always sum to the global batch.
    """
    if global_batch_size is None:
        return {}
    part, n_larger = divmod(global_batch_size, world)
    largest = part + (n_larger > 0)
    least = -(-largest // at_once) if at_once else 1
    equal = (steps for steps in range(least, min(2 * least, largest) + 1) if largest % steps == 0)
    steps = least if n_larger else next(equal, least)
    return {
        "OPTIMUS_GLOBAL_BATCH_SIZE": str(global_batch_size),
        "OPTIMUS_WORKER_BATCH_SIZE": str(-(-largest // steps)),
        "OPTIMUS_ACCUMULATION_STEPS": str(steps),
        "OPTIMUS_BATCH_PART": str(part + (rank < n_larger)),
    }


def weak_variables(n_workers: int, warmup_epochs: float | None) -> dict[str, str]:
    """Weak scaling: how many times the batch of one worker the global batch is, and the learning rate with it."""
    found = {"OPTIMUS_BATCH_FACTOR": str(n_workers)}
    return found if warmup_epochs is None else {**found, "OPTIMUS_WARMUP_EPOCHS": str(warmup_epochs)}


def python_environment(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """The variables with which a command runs in the environment of this interpreter, as if that were activated."""
    found = dict(environment)
    directory = python.rpartition("/")[0]
    found["PATH"] = f"{directory}:{found['PATH']}" if found.get("PATH") else directory
    found["VIRTUAL_ENV"] = directory.rpartition("/")[0]
    found.pop("PYTHONHOME", None)
    return found
