"""`python -m optimus_workers coordinator|server|worker`: run one task of a job (docs/protocol.md)."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

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
    return _run(role, environment)


def _run(role: str, environment: TaskEnvironment) -> int:
    # Imported here: the coordinator does without torch, which takes seconds to import.
    if role == "coordinator":
        from optimus_workers.coordinator.shell import run_coordinator

        return asyncio.run(run_coordinator(environment))
    if role == "server":
        from optimus_workers.server.run import run_server

        return asyncio.run(run_server(environment))
    if environment.spec.architecture == "script":
        from optimus_workers.script.agent import run_agent

        return run_agent(environment)
    from optimus_workers.worker.run import run_worker

    if environment.spec.architecture == "allreduce":
        from optimus_workers.allreduce.loop import GroupTraining  # torch.distributed takes a while to load

        return run_worker(environment, GroupTraining)
    from optimus_workers.worker.loop import ServerTraining

    return run_worker(environment, ServerTraining)


if __name__ == "__main__":
    sys.exit(main())
