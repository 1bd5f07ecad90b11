"""Telling the service what the servers and the coordinator itself take of their machines: a thread."""

from __future__ import annotations

import logging
import threading
from typing import Any

from optimus_contract.codec import write
from optimus_workers.errors import ServiceAway, ServiceRefused
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry.usage import ProcessMeter
from optimus_workers.wire.messages import Pong

log = logging.getLogger(__name__)


class UsageReporter:
    """Gathers what servers say in their pongs. `heard`, `forget` and `tell` are called on one thread, and do not wait.

    Only the newest counts: what the service did not hear while it was away is not told again.
    """

    def __init__(self, client: ServiceClient, own_task: str) -> None:
        """`own_task`: the coordinator's name."""
        self._client = client
        self._own_task = own_task
        self._meter = ProcessMeter()
        self._heard: dict[str, dict[str, Any]] = {}
        self._waiting: list[dict[str, Any]] = []
        self._changed = threading.Condition()  # guards _waiting; notified when there is something
        threading.Thread(target=self._run, name="usage", daemon=True).start()

    def heard(self, task: str, pong: Pong) -> None:
        """A task answered a ping; nothing to note if it told nothing about itself (workers)."""
        if pong.cpu_cores is not None and pong.memory_bytes is not None:
            self._heard[task] = {"cpu_cores": pong.cpu_cores, "memory_bytes": pong.memory_bytes}

    def forget(self, task: str) -> None:
        """The task is gone."""
        self._heard.pop(task, None)

    def tell(self) -> None:
        """Send what was heard since the last time, and what this process took since then."""
        heard, self._heard = self._heard, {}
        told = heard | {self._own_task: write(self._meter.read(), without_none=True)}
        with self._changed:
            self._waiting = [{"task": task, "usage": usage} for task, usage in told.items()]
            self._changed.notify_all()

    def _run(self) -> None:
        refusal = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                told, self._waiting = self._waiting, []
            try:
                self._client.post_usage(told)
            except ServiceAway as error:
                log.debug("nobody was told what tasks use: %s", error)
            except ServiceRefused as error:
                if str(error) != refusal:  # once, not every few seconds
                    log.warning("the service did not want to know what tasks use: %s", error)
                refusal = str(error)
