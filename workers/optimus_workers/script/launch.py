"""What the processes of a script are told: their place, their part of the batch, their environment. Pure."""

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


def batch_variables(global_batch_size: int | None, world: int) -> dict[str, str]:
    """How the global batch is divided over `world` processes; none if the job does not name one.

    `OPTIMUS_WORKER_BATCH_SIZE` · `OPTIMUS_ACCUMULATION_STEPS` · world is the global batch, where that can be: what one
    process computes at once never grows when processes are taken away, they accumulate gradients instead.
    """
    if global_batch_size is None:
        return {}
    each = max(1, -(-global_batch_size // world))
    return {
        "OPTIMUS_GLOBAL_BATCH_SIZE": str(global_batch_size),
        "OPTIMUS_WORKER_BATCH_SIZE": str(each),
        "OPTIMUS_ACCUMULATION_STEPS": "1",
    }


def python_environment(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """The variables with which a command runs in the environment of this interpreter, as if that were activated."""
    found = dict(environment)
    directory = python.rpartition("/")[0]
    found["PATH"] = f"{directory}:{found['PATH']}" if found.get("PATH") else directory
    found["VIRTUAL_ENV"] = directory.rpartition("/")[0]
    found.pop("PYTHONHOME", None)
    return found
