"""The images, really built and really run, where this machine can: buildah, and a base image in its storage.

`OPTIMUS_TEST_BASE_IMAGE` names that image (`python:3.11-slim`, or a stand-in with python3 and its venv module). What
the build needs of this machine beyond the Dockerfile (an index, certificates) is in `OPTIMUS_TEST_BUILD_OPTIONS`,
as options of `buildah build`: `--volume /etc/pip.conf:/etc/pip.conf:ro`, for example.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BASE, OPTIONS = "OPTIMUS_TEST_BASE_IMAGE", "OPTIMUS_TEST_BUILD_OPTIONS"
pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1800)]


class Image:
    """One built image, and a container of it in which commands run as the image says."""

    def __init__(self, name: str, file: str, *arguments: str) -> None:
        self.name = f"optimus-{name}:under-test"
        options = ["--isolation", "chroot", "--layers", "--format", "docker"]
        options += [word for argument in arguments for word in ("--build-arg", argument)]
        options += shlex.split(os.environ.get(OPTIONS, ""))
        buildah("build", *options, "-f", f"docker/{file}.Dockerfile", "-t", self.name, ".")
        self.container = buildah("from", "--pull-never", self.name).stdout.strip()

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", self.name).stdout)["Docker"]
        return found

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        listed = json.loads(buildah("images", "--json", self.name).stdout)[0]["size"]
        number, unit = str(listed).split()
        return int(float(number) * {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}[unit])

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return buildah("run", "--isolation", "chroot", self.container, "--", *command, check=check)

    def imports(self, module: str) -> bool:
        return self.run("python", "-c", f"import {module}", check=False).returncode == 0


def buildah(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, cwd=REPOSITORY)
    assert not check or done.returncode == 0, (
        f"buildah {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    return done


def built(name: str, file: str, argument: str, *others: str) -> Iterator[Image]:
    base = os.environ.get(BASE)
    if shutil.which("buildah") is None or base is None:
        pytest.skip(f"images are built only with buildah (here: {shutil.which('buildah')}) and {BASE} (here: {base})")
    image = Image(name, file, f"{argument}={base}", *others)
    yield image
    buildah("rm", image.container)


@pytest.fixture(scope="module")
def service() -> Iterator[Image]:
    yield from built("service", "service", "PYTHON_IMAGE")


@pytest.fixture(scope="module")
def worker() -> Iterator[Image]:
    yield from built("worker", "worker", "BASE_IMAGE")


@pytest.fixture(scope="module")
def server() -> Iterator[Image]:
    yield from built("server", "worker", "BASE_IMAGE", "TORCH=", "LOCK=server")


def test_the_worker_has_workers_and_nothing_of_the_service(worker: Image) -> None:
    assert "{coordinator,server,worker}" in worker.run("python", "-m", "optimus_workers", "--help").stdout
    assert worker.imports("torch")
    for module in ("fastapi", "sqlalchemy", "kubernetes", "optimus_service", "optimus_scheduler", "optimus_cli"):
        assert not worker.imports(module), module
    assert worker.run("sh", "-c", "command -v optimus", check=False).returncode != 0


def test_the_servers_image_has_what_servers_and_coordinators_import_and_no_torch(server: Image) -> None:
    assert server.imports("optimus_workers.server.run, optimus_workers.coordinator.shell")
    for module in ("torch", "scipy", "fastapi", "optimus_service"):
        assert not server.imports(module), module


def test_the_service_serves_and_has_no_torch(service: Image) -> None:
    assert service.run("optimus", "--version").stdout.strip()
    assert not service.imports("torch")
    assert service.imports("kubernetes, psycopg")
    check = shlex.join(service.config["config"]["Healthcheck"]["Test"][1:])
    script = (
        "optimus serve >/tmp/log 2>&1 & n=0;"
        f" until {check} 2>/dev/null; do n=$((n+1)); [ $n -lt 60 ] || {{ cat /tmp/log; exit 1; }}; sleep 1; done;"
        " kill $!; wait"
    )
    service.run("sh", "-c", f"export OPTIMUS_TOKEN=of-the-image-test-1234; {script}")


@pytest.mark.parametrize(("name", "most_mebibytes"), [("service", 700), ("worker", 1400), ("server", 350)])
def test_it_is_small_and_runs_as_nobody_special(request: pytest.FixtureRequest, name: str, most_mebibytes: int) -> None:
    image: Image = request.getfixturevalue(name)
    assert image.config["config"]["User"] == "10001:10001"
    assert image.run("id", "-u").stdout.strip() == "10001"
    check = image.config["config"]["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    assert image.size < most_mebibytes * 2**20, image.size


@pytest.mark.parametrize("name", ["worker", "server"])
def test_the_health_check_of_tasks_passes(request: pytest.FixtureRequest, name: str) -> None:
    image: Image = request.getfixturevalue(name)
    assert image.run(*image.config["config"]["Healthcheck"]["Test"][1:]).returncode == 0


@pytest.mark.parametrize("name", ["service", "worker", "server"])
def test_nothing_of_the_build_stays_in_it(request: pytest.FixtureRequest, name: str) -> None:
    image: Image = request.getfixturevalue(name)
    assert image.run("sh", "-c", "cat /etc/pip.conf 2>/dev/null || true").stdout == ""
    assert image.run("sh", "-c", "ls -A /src /root/.cache 2>/dev/null || true").stdout == ""
    environment = {each.partition("=")[0] for each in image.config["config"]["Env"]}
    assert not {each for each in environment if each.startswith("PIP_") or each.lower().endswith("_proxy")}
