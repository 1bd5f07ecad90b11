"""Clients that post telemetry as fast as they are answered, and what a server takes of the machine meanwhile."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

WARM_UP_SECONDS = 2.0
Body = Callable[[int, int], Any]
"""The first sample's number and the number of samples → the document to post."""


@dataclass(frozen=True)
class Target:
    """A server that takes telemetry."""

    port: int
    pid: int
    """Its process; those that it started count as well."""
    clients: Sequence[tuple[str, dict[str, str]]]
    """Path and headers of each client's posts."""
    extra: Sequence[dict[str, Any]] = ()
    """Of each client: what its documents have beside samples."""


@dataclass(frozen=True)
class Posts:
    """What one client saw."""

    seconds: list[float]
    """Of each acknowledged post after the warm-up."""
    n_acknowledged: int
    """Posts, those of the warm-up too."""
    n_postponed: int
    """Posts that were answered by 429."""


def measure(target: Target, body: Body, n_samples: int, seconds: float) -> dict[str, Any]:
    """Post from all clients at once, each from a process of its own."""
    begin = time.monotonic() + WARM_UP_SECONDS
    with multiprocessing.get_context("fork").Pool(len(target.clients)) as pool:
        running: list[AsyncResult[Posts]] = [
            pool.apply_async(_post_until, (target, number, body, n_samples, begin, seconds))
            for number in range(len(target.clients))
        ]
        time.sleep(max(0.0, begin - time.monotonic()))
        before = _cpu_seconds(target.pid)
        time.sleep(seconds)
        server_cpu = _cpu_seconds(target.pid) - before
        found = [each.get() for each in running]
    measured = [each for posts in found for each in posts.seconds]
    centiles = statistics.quantiles(measured, n=100)
    n_measured = len(measured) * n_samples
    return {
        "samples_per_second": round(n_measured / seconds, 1),
        "samples_per_server_cpu_second": round(n_measured / server_cpu, 1),
        "server_cpu_seconds": round(server_cpu, 2),
        "median_seconds": round(statistics.median(measured), 5),
        "p99_seconds": round(centiles[98], 5),
        "posts_postponed": sum(posts.n_postponed for posts in found),
        "samples_acknowledged": sum(posts.n_acknowledged for posts in found) * n_samples,
    }


def _post_until(target: Target, number: int, body: Body, n_samples: int, begin: float, seconds: float) -> Posts:
    path, headers = target.clients[number]
    extra = target.extra[number] if target.extra else {}
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
    measured: list[float] = []
    n_acknowledged = n_postponed = 0
    while time.monotonic() < begin + seconds:
        document = json.dumps(body(n_acknowledged * n_samples, n_samples) | extra)
        started = time.monotonic()
        connection.request("POST", path, document, headers | {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == http.client.TOO_MANY_REQUESTS:
            n_postponed += 1
            time.sleep(float(answer.headers["Retry-After"]))
            continue
        assert answer.status == http.client.OK, text
        assert json.loads(text) in ({}, {"accepted": n_samples, "ignored": []}), text
        n_acknowledged += 1
        if begin <= started and time.monotonic() <= begin + seconds:
            measured.append(time.monotonic() - started)
    connection.close()
    return Posts(measured, n_acknowledged, n_postponed)


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process and of those that it started and that run, in seconds."""
    return sum(_ticks(each) for each in _family(pid)) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def _ticks(pid: int) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
