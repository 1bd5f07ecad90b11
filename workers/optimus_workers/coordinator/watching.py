"""Asking the service what the job should have: a thread that long-polls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from optimus_workers.coordinator.events import Directive, Wanted
from optimus_workers.errors import ServiceProblem, ServiceRefused
from optimus_workers.service_client import ServiceClient

log = logging.getLogger(__name__)

POLL_SECONDS = 25.0
RETRY_SECONDS = 1.0
"""After a failed call."""
REFUSED_SECONDS = 60.0
"""Longest pause after a call that was refused. The job trains on, as it does without a service."""


def watch_wanted(client: ServiceClient, on_wanted: Callable[[Wanted], None]) -> None:
    """Call `on_wanted` (on a thread of its own) with what is wanted now and with every change, for ever."""
    threading.Thread(target=_watch, args=(client, on_wanted), name="wanted", daemon=True).start()


def _watch(client: ServiceClient, on_wanted: Callable[[Wanted], None]) -> None:
    generation = -1
    told, pause = "", RETRY_SECONDS
    while True:
        try:
            wanted = parse_wanted(client.wanted(max(generation, 0), POLL_SECONDS if generation >= 0 else 0.0))
        except (ServiceProblem, ValueError) as error:
            if str(error) != told:  # once, not every time
                log.warning("cannot learn what is wanted: %s", error)
            told = str(error)
            # It may be refused for long: the job may not be known (any more), or the service's secret be another.
            pause = min(2 * pause, REFUSED_SECONDS) if isinstance(error, ServiceRefused) else RETRY_SECONDS
            time.sleep(pause)
            continue
        told, pause = "", RETRY_SECONDS
        if wanted.generation > generation:
            generation = wanted.generation
            on_wanted(wanted)


def parse_wanted(body: dict[str, Any]) -> Wanted:
    """A `WantedMembership`. Raises `ValueError` when it is not one."""
    try:
        tasks = frozenset(str(task["name"]) for task in body["tasks"])
        batch = body.get("global_batch")
        return Wanted(
            int(body["generation"]),
            Directive(body["directive"]),
            tasks,
            None if batch is None else int(batch),
            int(body.get("membership_epoch", 0)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a wanted membership: {error!r}") from error
