"""What running a script below an agent costs: the pause of each change of its workers, and the agent's own time.

    python -m benchmarks.script_overhead [--scripts ddp elastic ...] [--rounds 1] [--torchrun]

The scripts are those of tests/scripts, with coordinator and agents as they are started in production and the stand-in
for the service that the tests use. Each goes from 1 to 3 workers, to 2, and loses one by SIGKILL. A pause is from the
last step before a change to the first step after it. Its parts are those that the service is told: saving, stopping,
starting (meeting and the first step included) and loading; what is left is coordination.

`--torchrun` measures stock torchrun in the same run, with the DDP script: its c10d rendezvous, `--nnodes=1:3`, and
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which an agent that joins ends all. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.parameter_server.report import machine
from tests.workers.protocol.conftest import FakeService, Job, worker

from optimus_workers.wire.ports import reserve_port

SCRIPTS = Path(__file__).parents[1] / "tests" / "scripts"
COMMANDS: dict[str, tuple[str, ...]] = {
    "ddp": ("torchrun", "ddp_train.py", "--steps", "1000000", "--snapshot", "{folder}/snapshot.pt"),
    "elastic": ("torchrun", "elastic_train.py", "--epochs", "100000", "--out", "{folder}/final.pt"),
    "elastic 25M": (
        "torchrun",
        "elastic_train.py",
        "--epochs",
        "9999",
        "--width",
        "5000",
        "--out",
        "{folder}/final.pt",
    ),
    "fsdp": ("torchrun", "fsdp_train.py", "--steps", "1000000", "--directory", "{folder}/out"),
    "transformers": ("torchrun", "hf_trainer.py", "--steps", "1000000", "--output-dir", "{folder}/out"),
    "jax": ("torchrun", "jax_loop.py", "--steps", "1000000", "--directory", "{folder}/out"),
    "accelerate": ("accelerate", "launch", "accelerate_loop.py", "--steps", "1000000", "--directory", "{folder}/out"),
}
STEP_SECONDS = 0.05
"""Waited for in each step, so that steps take alike on every machine."""
STEPS_BETWEEN = 15
COST_SECONDS = 20.0
"""After which the agent's own time is measured, though fewer than 100 steps were made."""
TORCHRUN_SECONDS = 240.0
"""The longest wait for stock torchrun to go on."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What running a script below an agent costs.")
    parser.add_argument(
        "--scripts", nargs="*", choices=list(COMMANDS), default=["ddp", "elastic", "elastic 25M", "fsdp"]
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--torchrun", action="store_true", help="also stock torchrun")
    parser.add_argument(
        "--lines",
        nargs="+",
        type=int,
        default=[],
        help="lines a second whose reading is measured; 0: as many as it can",
    )
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "step_seconds": STEP_SECONDS, "scripts": {}}
    for name in options.scripts:
        report["scripts"][name] = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                report["scripts"][name].append(_one_job(Path(folder), COMMANDS[name]))
    report["printed"] = [_printing(rate) for rate in options.lines]
    if options.torchrun:
        with tempfile.TemporaryDirectory() as folder:
            report["stock torchrun"] = _torchrun(Path(folder))
    report["load_after"] = os.getloadavg()
    print(json.dumps(report, indent=1))


def _command(folder: Path, words: tuple[str, ...]) -> list[str]:
    found = [str(SCRIPTS / word) if word.endswith(".py") else word.format(folder=folder) for word in words]
    return [*found, "--step-seconds", str(STEP_SECONDS)]


def _one_job(folder: Path, words: tuple[str, ...]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "architecture": "script",
        "command": _command(folder, words),
        "working_directory": str(folder),
        "workers": {"min": 1, "max": 3, "resources": {}},
        "stop_seconds": 30.0,
        "convergence": {},
    }
    service = FakeService()
    job = Job(folder, service, spec, reserve_port("127.0.0.1"))
    changes: dict[str, Any] = {}
    try:
        job.start_coordinator()
        job.scale(worker(0))
        membership = job.wait_for_size(1, 0)
        job.wait_for_step(membership["step"] + STEPS_BETWEEN)
        cost = _agent_cost(job)
        for name, n_workers in (("1 to 3 workers", 3), ("3 to 2 workers", 2), ("a worker is killed", 1)):
            if "killed" in name:
                job.kill(worker(1))
            else:
                job.scale(*(worker(rank) for rank in range(n_workers)))
            membership = job.wait_for_size(n_workers, 0, after_epoch=membership["epoch"])
            changes[name] = {
                "pause_seconds": round(float(membership["pause_seconds"]), 2),
                "lost_steps": membership["lost_steps"],
                "parts": {part: _rounded(value) for part, value in (membership["pause_parts"] or {}).items()},
            }
            job.wait_for_step(membership["step"] + STEPS_BETWEEN)
        return {"changes": changes, "agent": cost}
    finally:
        job.stop()
        service.close()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _agent_cost(job: Job) -> dict[str, float]:
    """The processor time that the agent itself takes per step, while its processes train."""
    pid = job.processes[worker(0)].pid
    step, cpu, began = job.service.step, _processor_seconds(pid), time.monotonic()
    job.wait_for(
        "steps to measure",
        lambda: job.service.step >= step + 100 or (job.service.step > step and time.monotonic() > began + COST_SECONDS),
    )
    steps, seconds = job.service.step - step, time.monotonic() - began
    each, cost = seconds / steps, (_processor_seconds(pid) - cpu) / steps
    return {
        "step_seconds": round(each, 4),
        "agent_cpu_seconds_per_step": round(cost, 6),
        "share": round(cost / each, 4),
    }


# --- what is printed -------------------------------------------------------------------------------------------------

PRINTING_SECONDS = 10.0
PRINTS_AT_A_RATE = """
import itertools, sys, time
rate, begun = float(sys.argv[1]), time.monotonic()
for step in itertools.count(1):
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(max(0.0, begun + step / rate - time.monotonic()))
"""
PRINTS_WITHOUT_END = """
import itertools, sys, time
for block in itertools.count():
    steps = range(block * 10000 + 1, block * 10000 + 10001)
    sys.stdout.buffer.write(b"".join(b"step %d loss 0.5\\n" % step for step in steps))
    sys.stdout.buffer.flush()
"""


def _printing(rate: int) -> dict[str, Any]:
    """The processor time and the memory of an agent whose script does nothing but print; `rate` 0: without a break."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "prints.py"
        script.write_text(PRINTS_AT_A_RATE if rate else PRINTS_WITHOUT_END)
        service = FakeService()
        spec = {
            "architecture": "script",
            "command": ["python", str(script), str(rate)],
            "working_directory": name,
            "workers": {"min": 1, "max": 1, "resources": {}},
            "convergence": {},
        }
        job = Job(folder, service, spec, reserve_port("127.0.0.1"))
        try:
            job.start_coordinator()
            job.scale(worker(0))
            job.wait_for_size(1, 0)
            job.wait_for_step(max(1, rate))
            return {"wanted_lines_per_second": rate or None, **_reading_cost(job)}
        finally:
            job.stop()
            service.close()


def _reading_cost(job: Job) -> dict[str, float]:
    pid = job.processes[worker(0)].pid
    log, proc = job.directory / f"{worker(0)}.log", Path(f"/proc/{pid}")
    size, n_samples, cpu, began = (
        log.stat().st_size,
        len(job.service.samples),
        _processor_seconds(pid),
        time.monotonic(),
    )
    time.sleep(PRINTING_SECONDS)
    seconds, used = time.monotonic() - began, _processor_seconds(pid) - cpu
    with log.open("rb") as file:
        file.seek(size)
        n_lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(2**20), b""))
    peak = next(line for line in (proc / "status").read_text().splitlines() if line.startswith("VmHWM:"))
    return {
        "lines_per_second": round(n_lines / seconds),
        "agent_cpu_share": round(used / seconds, 4),
        "agent_cpu_seconds_per_line": round(used / n_lines, 8),
        "samples_per_second": round((len(job.service.samples) - n_samples) / seconds, 1),
        "peak_memory_mib": round(int(peak.split()[1]) / 1024),
    }


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- stock torchrun --------------------------------------------------------------------------------------------------


class _Node:
    """One `torchrun` and the moments at which its processes print a step."""

    def __init__(self, folder: Path, port: int, steps: list[float]) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:3", "--nproc-per-node=1"]
        rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=one", "--max-restarts=20"]
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [*torchrun, *rendezvous, *_command(folder, COMMANDS["ddp"])[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"GLOO_SOCKET_IFNAME": "lo"},
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(steps,), daemon=True).start()

    def _read(self, steps: list[float]) -> None:
        assert self._process.stdout is not None
        steps.extend(time.monotonic() for line in self._process.stdout if line.startswith(b"step "))

    def end(self, number: signal.Signals) -> None:
        """Signal it and its processes."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return
        self._process.wait(60)


def _torchrun(folder: Path) -> dict[str, float | None]:
    """The pauses of the same changes."""
    port, steps = reserve_port("127.0.0.1"), list[float]()
    nodes = [_Node(folder, port, steps)]
    try:
        _steps_after(steps, 0, STEPS_BETWEEN)
        n = len(steps)
        nodes += [_Node(folder, port, steps), _Node(folder, port, steps)]
        up = _pause(steps, n)
        n = len(steps)
        nodes.pop().end(signal.SIGTERM)
        down = _pause(steps, n)
        return {"1 to 3 nodes": up, "3 to 2 nodes": down}
    finally:
        for node in nodes:
            node.end(signal.SIGKILL)


def _steps_after(steps: list[float], n: int, more: int) -> bool:
    give_up_at = time.monotonic() + TORCHRUN_SECONDS
    while len(steps) < n + more:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.1)
    return True


def _pause(steps: list[float], n: int) -> float | None:
    """The longest time without a step since the `n`th, once steps have come for 20 s without another such gap."""
    give_up_at = time.monotonic() + TORCHRUN_SECONDS
    while time.monotonic() < give_up_at:
        time.sleep(0.5)
        known = steps[max(0, n - 1) :]
        gaps = [(later - before, later) for before, later in pairwise(known)]
        longest = max(gaps, default=(0.0, 0.0))
        if longest[0] > 1.0 and time.monotonic() > longest[1] + 20.0:
            return round(longest[0], 2)
    return None


if __name__ == "__main__":
    main()
