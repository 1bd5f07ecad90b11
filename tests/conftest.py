"""What tests of several packages share: one Kubernetes control plane for the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.clusters.kubernetes.control_plane import Binaries, ControlPlane, ControlPlaneMissing


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane that the tests started; those that need no more than an API server take `kubeconfig`."""
    try:
        binaries = Binaries.find()
    except ControlPlaneMissing as missing:
        if os.environ.get("OPTIMUS_TEST_REQUIRE_KUBERNETES") == "1":
            pytest.fail(f"OPTIMUS_TEST_REQUIRE_KUBERNETES=1, but {missing}")
        pytest.skip(str(missing))
    started = ControlPlane(binaries)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    """Of an administrator of the cluster to test with."""
    if given := os.environ.get("OPTIMUS_TEST_KUBECONFIG"):
        return Path(given)
    started: ControlPlane = request.getfixturevalue("control_plane")
    return started.kubeconfig
