"""Measure the contenders of one size in turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.parameter_server.contenders import Size, ddp, loopback, parameter_server
from benchmarks.parameter_server.groups import Burst, Group
from benchmarks.parameter_server.serving import N_SECTIONS

from optimus_workers.wire.compression import Compression
from optimus_workers.wire.sockets import Transport

FLOAT_BYTES = 4
PACED_BYTES_PER_SECOND = 125e6
"""A network card of 1 Gbit/s for each process."""
BASELINES = ("ddp", "all_reduce")
"""With DDP's buckets, and of the whole gradient in one piece."""


@dataclass(frozen=True, slots=True)
class Options:
    """How long to measure."""

    n_rounds: int = 5
    n_steps: int = 5
    """In one burst; the first is not counted."""
    rest: float = 1.0
    """Pause after each burst, in bursts: others use the machine too."""
    realtime: bool = False
    contenders: tuple[str, ...] = ()
    """Beside DDP; none: all."""


@dataclass(slots=True)
class Measured:
    """The bursts of one contender."""

    bursts: list[Burst] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        """The median step of the best burst: the one that was disturbed least."""
        return 1e3 * min(statistics.median(burst.step_seconds) for burst in self.bursts)

    @property
    def cpu_milliseconds(self) -> float:
        """Of all processes together, of the cheapest burst."""
        return 1e3 * min(burst.cpu_seconds for burst in self.bursts)


def contenders(size: Size, *, realtime: bool) -> dict[str, Callable[[], Group]]:
    """Name → how to start it."""
    return {
        "ddp": lambda: ddp(size, bucketed=True, realtime=realtime),
        "all_reduce": lambda: ddp(size, bucketed=False, realtime=realtime),
        "local": lambda: parameter_server(size, Transport.AUTO, realtime=realtime),
        "unix": lambda: parameter_server(size, Transport.UNIX, realtime=realtime),
        "tcp": lambda: parameter_server(size, Transport.TCP, realtime=realtime),
        "tcp_bf16": lambda: parameter_server(
            size, Transport.TCP, compression=Compression.BF16, realtime=realtime
        ),
        "loopback": lambda: loopback(size, realtime=realtime),
    }  # fmt: skip


def row(size: Size, options: Options) -> dict[str, Any]:
    """All contenders at one size."""
    starts = contenders(size, realtime=options.realtime)
    with ExitStack() as stack:
        chosen = [name for name in starts if name in BASELINES or not options.contenders or name in options.contenders]
        groups = {name: stack.enter_context(starts[name]()) for name in chosen}
        measured = _in_turns(groups, options)
        memory = groups["tcp"].server_bytes if "tcp" in groups else 0
    share = FLOAT_BYTES * size.n_floats / size.servers * N_SECTIONS
    moved = 2 * size.workers * FLOAT_BYTES * size.n_floats
    return {
        "parameters": size.n_floats,
        "workers": size.workers,
        "servers": size.servers,
        "milliseconds": {name: round(one.milliseconds, 2) for name, one in measured.items()},
        "cpu_milliseconds": {name: round(one.cpu_milliseconds, 2) for name, one in measured.items()},
        "gigabytes_per_second": {
            name: round(moved / one.milliseconds / 1e6, 2) for name, one in measured.items() if name not in BASELINES
        },
        "times_ddp": _ratios(measured, "ddp"),
        "times_all_reduce": _ratios(measured, "all_reduce"),
        "times_ddp_median": _median_ratios(measured, "ddp"),
        "server_memory_in_shares": round(memory / share, 2),
    }  # fmt: skip


def _ratios(measured: Mapping[str, Measured], base: str) -> dict[str, float]:
    return {
        name: round(one.milliseconds / measured[base].milliseconds, 3)
        for name, one in measured.items()
        if name not in BASELINES
    }


def _median_ratios(measured: Mapping[str, Measured], base: str) -> dict[str, float]:
    """Of the bursts of each round, which lie side by side, the ratio; the median of all rounds."""

    def medians(one: Measured) -> list[float]:
        return [statistics.median(burst.step_seconds) for burst in one.bursts]

    bases = medians(measured[base])
    return {
        name: round(statistics.median(each / by for each, by in zip(medians(one), bases, strict=True)), 3)
        for name, one in measured.items()
        if name not in BASELINES
    }


def _in_turns(groups: Mapping[str, Group], options: Options) -> dict[str, Measured]:
    measured = {name: Measured() for name in groups}
    for number in range(1 + options.n_rounds):
        for name, group in groups.items():
            started_at = time.perf_counter()
            burst = group.burst(options.n_steps)
            if number:  # the first round touches the memory
                measured[name].bursts.append(burst)
            time.sleep(options.rest * (time.perf_counter() - started_at))
    return measured


def paced_row(size: Size, options: Options, rate: float = PACED_BYTES_PER_SECOND) -> dict[str, Any]:
    """Every process limited to `rate` bytes a second each way."""
    ideal = FLOAT_BYTES * size.n_floats * max(size.workers / size.servers, 1.0) / rate
    found = {}
    for name, compression in (("float32", Compression.NONE), ("bf16_push", Compression.BF16)):
        with parameter_server(
            size, Transport.TCP, compression=compression, bytes_per_second=rate, realtime=options.realtime
        ) as group:
            bursts = [group.burst(options.n_steps) for _ in range(options.n_rounds)]
        found[name] = min(statistics.median(burst.step_seconds) for burst in bursts)
    return {
        "parameters": size.n_floats,
        "workers": size.workers,
        "servers": size.servers,
        "ideal_milliseconds": round(1e3 * ideal, 1),
        "milliseconds": {name: round(1e3 * seconds, 1) for name, seconds in found.items()},
        "times_ideal": {name: round(seconds / ideal, 3) for name, seconds in found.items()},
    }
