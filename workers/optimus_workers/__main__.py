"""`python -m optimus_workers coordinator|server|worker`: run one task of a job (docs/protocol.md)."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import TERMINATED, EnvironmentProblem

BAD_USAGE = 2


def main() -> int:
    """Run the role named on the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="optimus_workers", description="Run one task of a training job.")
    parser.add_argument("role", choices=["coordinator", "server", "worker"])
    role = parser.parse_args().role
    # Until the role has its own way to leave: importing torch and loading the task take seconds.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per request otherwise
    try:
        environment = TaskEnvironment.from_environ(os.environ)
    except EnvironmentProblem as error:
        sys.stderr.write(f"{error}\n")
        return BAD_USAGE
    # What is imported is no garbage: to look through it, now and at the end, takes a third of the time of a start.
    gc.disable()
    run = _imported(role, environment)
    gc.freeze()
    gc.enable()
    return run()


def _imported(role: str, environment: TaskEnvironment) -> Callable[[], int]:
    """What runs the role."""
    # Imported here: the coordinator does without torch, which takes seconds to import.
    if role == "coordinator":
        from optimus_workers.coordinator.shell import run_coordinator

        return lambda: asyncio.run(run_coordinator(environment))
    if role == "server":
        from optimus_workers.server.run import run_server

        return lambda: asyncio.run(run_server(environment))
    if environment.spec.architecture == "script":
        from optimus_workers.script.agent import run_agent

        return lambda: run_agent(environment)
    from optimus_workers.worker.run import run_worker

    if environment.spec.architecture == "allreduce":
        from optimus_workers.allreduce.loop import GroupTraining  # torch.distributed takes a while to load

        return lambda: run_worker(environment, GroupTraining)
    from optimus_workers.worker.loop import ServerTraining

    return lambda: run_worker(environment, ServerTraining)


if __name__ == "__main__":
    sys.exit(main())
