"""A worker and a server that cannot reach each other, though both reach the coordinator: on hosts of their own."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Host, Job, server, worker
from tests.workers.protocol.replay import Replay, final_sections, history

pytestmark = pytest.mark.skipif(
    shutil.which("ip") is None or os.geteuid() != 0, reason="network namespaces need root and Debian's iproute2"
)
NETWORK = "10.213.77"
HERE = f"{NETWORK}.1"
_NUMBERS = itertools.count()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True)
class Cable:
    """A host (network namespace) on the bridge, by its number."""

    name: str
    number: int

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def host(self) -> Host:
        return Host(("ip", "netns", "exec", self.name), HERE)

    def plug_in(self, bridge: str) -> None:
        inner, outer = "eth0", f"{bridge}-{self.number}"
        ip("netns", "add", self.name)
        ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", self.name)
        ip("link", "set", outer, "master", bridge, "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", inner)
        ip("-n", self.name, "link", "set", inner, "up")

    def cut_from(self, other: Cable) -> None:
        """What is sent to the other host goes to a card that does not exist."""
        nowhere = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        ip("-n", self.name, "neigh", "replace", other.address, *nowhere)


@pytest.fixture
def cables() -> Iterator[tuple[Cable, Cable]]:
    """Two hosts on a bridge on which this one has an address, too."""
    tag = f"op{os.getpid() % 10_000}{next(_NUMBERS)}"  # a name is free again some time after its namespace is gone
    hosts = Cable(f"{tag}-a", 2), Cable(f"{tag}-b", 3)
    try:
        ip("link", "add", tag, "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no bridges here: {error.stderr.decode().strip()}")
    try:
        ip("address", "add", f"{HERE}/24", "dev", tag)
        ip("link", "set", tag, "up")
        for host in hosts:
            host.plug_in(tag)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", tag], check=False, capture_output=True)


def test_a_cut_pair_is_found_and_the_job_goes_on_without_the_worker(
    make_job: Callable[..., Job], cables: tuple[Cable, Cable]
) -> None:
    far_worker, far_server = cables
    hosts = {
        "job-coordinator-0-0": Host((), "0.0.0.0"),
        worker(0): Host((), HERE),
        worker(1): far_worker.host,
        server(0): far_server.host,
    }
    job = make_job({"step_seconds": 0.005}, hosts=hosts)
    job.scale(worker(0), worker(1), server(0))
    both = job.wait_for_size(2, 1)
    job.wait_for_step(both["step"] + 5)

    far_worker.cut_from(far_server)
    far_server.cut_from(far_worker)
    alone = job.wait_for_size(1, 1, after_epoch=both["epoch"])
    assert alone["workers"] == [worker(0)], "it is the worker that goes: it holds nothing"
    assert alone["lost_steps"] == 0
    assert job.exit_code(worker(1)) == 0

    result = job.finish()
    assert result["outcome"] == "succeeded"
    version, (parameters, _) = final_sections(job.directory, 2)
    assert version == result["step"]
    replay = Replay(tiny_training.make(), seed=5)
    replay.follow(history(job.directory), result["step"])
    assert torch.equal(parameters, replay.vector.data)


def test_of_two_workers_of_a_group_that_are_cut_off_one_goes(
    make_job: Callable[..., Job], cables: tuple[Cable, Cable]
) -> None:
    one, other = cables
    hosts = {
        "job-coordinator-0-0": Host((), "0.0.0.0"),
        worker(0): Host((), HERE),
        worker(1): one.host,
        worker(2): other.host,
    }
    job = make_job({"step_seconds": 0.005}, architecture="allreduce", hosts=hosts)
    job.scale(worker(0), worker(1), worker(2))
    together = job.wait_for_size(3, 0)
    job.wait_for_step(together["step"] + 5)

    one.cut_from(other)
    other.cut_from(one)
    left = job.wait_for_size(2, 0, after_epoch=together["epoch"])
    assert worker(0) in left["workers"], "it reaches both"
    assert "cut off" in left["message"]
    assert left["lost_steps"] == 0
    (gone,) = {worker(1), worker(2)} - set(left["workers"])
    assert job.exit_code(gone) == 0
    assert job.finish()["outcome"] == "succeeded"
