"""What a training script or a notebook imports of Optimus. It needs only the standard library until more is used.

In a script:

    optimus_client.report(step=step, loss=loss)     one line: Optimus learns the curve; does nothing outside Optimus
    optimus_client.stop_requested()                 save and stop now?
    optimus_client.elastic(model, optimizer, loader, epochs=10)     a loop that stops, resumes and is resized (torch)

    with optimus_client.track("bert"):      the same anywhere else: the service shows the run as a job

In a notebook:

    optimus_client.Client().list()      the service's calls; `AsyncClient` for asyncio (httpx)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .batch import accumulation_steps, batch_factor, batch_part, worker_batch_size
from .reporting import flush, report, report_schedule, resumes, stop_requested, stopped

if TYPE_CHECKING:
    from .agreement import stop_agreed
    from .calls import ApiError, Conflict, Invalid, NotFound, OptimusError, Unauthorized, Unreachable
    from .client import AsyncClient, Client
    from .loop import ElasticRun, elastic
    from .tracking import TrackedRun, track

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "Conflict",
    "ElasticRun",
    "Invalid",
    "NotFound",
    "OptimusError",
    "TrackedRun",
    "Unauthorized",
    "Unreachable",
    "accumulation_steps",
    "batch_factor",
    "batch_part",
    "elastic",
    "flush",
    "report",
    "report_schedule",
    "resumes",
    "stop_agreed",
    "stop_requested",
    "stopped",
    "track",
    "worker_batch_size",
]
__version__ = "0.1.0"

_MODULES = {
    "ElasticRun": "loop",
    "elastic": "loop",
    "stop_agreed": "agreement",
    "TrackedRun": "tracking",
    "track": "tracking",
    "AsyncClient": "client",
    "Client": "client",
    **dict.fromkeys(
        ("ApiError", "Conflict", "Invalid", "NotFound", "OptimusError", "Unauthorized", "Unreachable"), "calls"
    ),
}
"""Where the names are that need more than the standard library, or time to import."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
