"""Processes of one contender, which take steps together when they are told to."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

FORKING = multiprocessing.get_context("fork")
"""torch is imported once, not once per process."""
AFRESH = multiprocessing.get_context("spawn")
"""A process that has imported nothing but what it needs: its memory can be told."""
PATIENCE_SECONDS = 120.0

Body = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Burst:
    """Some steps in a row."""

    step_seconds: tuple[float, ...]
    """Of the first process, without its first step; one mean where processes do not keep step."""
    cpu_seconds: float
    """Of all processes together, per step."""


class Group:
    """Use as a context; everything ends with it."""

    def __init__(self, *, realtime: bool = False, in_step: bool = True) -> None:
        """`in_step`: nobody begins a step before all have ended the one before."""
        self._realtime = realtime
        self._in_step = in_step
        self._processes: list[BaseProcess] = []
        self._folder = tempfile.TemporaryDirectory(prefix="optimus-benchmark-")
        self._servers: list[Connection] = []
        self._steppers: list[Connection] = []
        self.server_bytes = 0
        """What the largest server had in memory after the last burst."""

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """For files that its processes meet in."""
        return Path(self._folder.name)

    def serve(self, body: Body, *arguments: Any) -> Connection:
        """Run `body(pipe, *arguments)` in a process that is asked after each burst what it used."""
        self._servers.append(self._start(FORKING, body, arguments))
        return self._servers[-1]

    def serve_afresh(self, body: Body, *arguments: Any) -> Connection:
        """The same in a process that begins as an interpreter, with the module of `body` and no other."""
        self._servers.append(self._start(AFRESH, body, arguments))
        return self._servers[-1]

    def step(self, body: Body, *arguments: Any) -> None:
        """Run `body(pipe, *arguments)` in a process that takes steps."""
        self._steppers.append(self._start(FORKING, body, arguments))

    def _start(self, context: ForkContext | SpawnContext, body: Body, arguments: tuple[Any, ...]) -> Connection:
        ours, theirs = context.Pipe()
        process: BaseProcess = context.Process(target=_run, args=(body, theirs, self._realtime, arguments), daemon=True)
        process.start()
        self._processes.append(process)
        return ours

    def burst(self, n_steps: int) -> Burst:
        """Have all members take steps."""
        started_at = time.perf_counter()
        for pipe in self._servers + self._steppers:
            pipe.send(n_steps)
        results = [receive(pipe) for pipe in self._steppers]
        elapsed = time.perf_counter() - started_at
        for pipe in self._servers:
            pipe.send("what did it take?")
        servers = [receive(pipe) for pipe in self._servers]
        self.server_bytes = max((n_bytes for n_bytes, _ in servers), default=0)
        cpu_seconds = sum(cpu for _, cpu in results + servers)
        # Where each goes at its own pace, only the time until the last one is through says anything.
        seconds = tuple(results[0][0][1:]) if self._in_step else (elapsed / n_steps,)
        return Burst(seconds, cpu_seconds / n_steps)


def receive(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_SECONDS):
        raise TimeoutError("a process of the benchmark does not answer")
    return pipe.recv()


def _run(body: Body, pipe: Connection, realtime: bool, arguments: tuple[Any, ...]) -> None:
    if realtime:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    body(pipe, *arguments)
