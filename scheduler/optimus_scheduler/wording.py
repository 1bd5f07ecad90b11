"""Sizes and times as people say them."""

from __future__ import annotations

from optimus_scheduler.types import Allocation


def size_words(size: Allocation) -> str:
    """3 workers and 1 server; only workers for a size without servers."""
    servers = f" and {size.servers} server{'s' * (size.servers != 1)}" if size.servers or not size.workers else ""
    return f"{size.workers} worker{'s' * (size.workers != 1)}{servers}"


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 5 min, 2.5 h, 3 days"""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
