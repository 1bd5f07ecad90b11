from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.clusters.kubernetes.machine_wide import take_back

pytestmark = pytest.mark.skipif(
    shutil.which("ip") is None or os.geteuid() != 0, reason="network namespaces need iproute2 and root"
)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"left{os.getpid() % 100000}"
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def test_a_node_that_a_killed_run_left_is_taken_back(name: str) -> None:
    ip("netns", "add", name)
    ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
    program = "import os, sys; print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        ["ip", "netns", "exec", name, "python3", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"

        take_back(name)

        assert process.wait(timeout=60) == -9
    assert name not in ip("netns", "list")
    assert f"v{name}" not in ip("link", "show")
    ip("netns", "add", name)  # the name is free


@pytest.mark.parametrize("by", ["environment", "arguments"])
def test_so_is_one_whose_namespace_has_lost_its_name(name: str, by: str) -> None:
    ip("netns", "add", name)
    program = "import sys; print('in', flush=True); sys.stdin.read()"
    state = f"/run/k8s-{name}"
    arguments = [f"--container-runtime-endpoint=unix://{state}/containerd.sock"] if by == "arguments" else []
    environment = {**os.environ, **({"R": state} if by == "environment" else {})}
    with subprocess.Popen(
        ["ip", "netns", "exec", name, "python3", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        ip("netns", "delete", name)

        take_back(name)

        assert process.wait(timeout=60) == -9


def test_so_is_a_name_without_a_namespace_and_one_that_nobody_has(name: str) -> None:
    left = Path("/run/netns") / name
    left.parent.mkdir(exist_ok=True)
    left.touch()

    take_back(name)
    take_back(name)

    assert not left.exists()
    ip("netns", "add", name)
