"""What a training script tells Optimus, and asks of it.

    import optimus_client

    optimus_client.report(step=step, loss=loss)

Importing this needs the standard library alone, and outside Optimus every call does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optimus_client.reporting import report, resumes, stop_requested, stopped

if TYPE_CHECKING:
    from optimus_client.loop import ElasticRun, elastic

__all__ = ["ElasticRun", "elastic", "report", "resumes", "stop_requested", "stopped"]


def __getattr__(name: str) -> Any:
    """`elastic` needs torch, which is imported when it is used."""
    if name in ("elastic", "ElasticRun"):
        from optimus_client import loop

        return getattr(loop, name)
    raise AttributeError(f"module 'optimus_client' has no attribute {name!r}")
