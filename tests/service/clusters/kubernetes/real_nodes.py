"""Real nodes on one machine: containerd and kubelet in network namespaces, started by the scripts of a directory.

`OPTIMUS_TEST_KUBE_NODES`: the directory with `start-control-plane.sh`, `start-node.sh`, `mkimage.py` and `images/`;
the binaries come from `KUBEBUILDER_ASSETS`. Needs root, containerd, runc, the CNI plugins, iproute2 and iptables.

Containers run this machine's Python, repository and virtual environment, seen read-only; no image has to be built. With
`OPTIMUS_TEST_SERVICE_IMAGE`, `OPTIMUS_TEST_WORKER_IMAGE` and `OPTIMUS_TEST_SERVER_IMAGE` (archives of images built from
docker/, named `optimus-service:test`, `optimus-worker:test` and `optimus-server:test`) they run those instead.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HOW_TO = "set OPTIMUS_TEST_KUBE_NODES and KUBEBUILDER_ASSETS (see docs/studies/kubernetes.md, 'Tests')"
BRIDGE = "10.240.0.1"
SERVICE_IMAGE, WORKER_IMAGE, SERVER_IMAGE = (
    f"docker.io/library/optimus-{name}:test" for name in ("service", "worker", "server")
)
REPOSITORY = Path(__file__).resolve().parents[4]
_PROGRAMS = ("containerd", "runc", "ctr", "ip", "iptables", "curl", "openssl")


@contextmanager
def visible_to_pods() -> Iterator[tuple[Path, Path]]:
    """The repository and the virtual environment, where pods can see them.

    Pods have a /tmp of their own, so what lies there is shown to them under another path.
    """
    places = [REPOSITORY, Path(sys.prefix).resolve()]
    with ExitStack() as stack:
        if any(place.is_relative_to("/tmp") for place in places):
            outside = Path(tempfile.mkdtemp(prefix="optimus-pods-", dir="/var/lib"))
            stack.callback(outside.rmdir)
            outside.chmod(0o755)
            for number, place in enumerate(places):
                stack.enter_context(_bound(place, outside / str(number)))
            places = [outside / str(number) for number in range(len(places))]
        yield places[0], places[1]


@contextmanager
def _bound(place: Path, other: Path) -> Iterator[None]:
    other.mkdir()
    subprocess.run(["mount", "--bind", str(place), str(other)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(other)], check=True, capture_output=True)
        other.rmdir()


def _given(image: str) -> str | None:
    """The archive of SERVICE, WORKER or SERVER."""
    return os.environ.get(f"OPTIMUS_TEST_{image}_IMAGE")


class NodesMissing(Exception):
    """Real nodes cannot be started here; the message says why."""


def scripts_and_binaries() -> tuple[Path, Path]:
    """Their directories. Raises `NodesMissing` where anything is missing that nodes need."""
    scripts, binaries = os.environ.get("OPTIMUS_TEST_KUBE_NODES"), os.environ.get("KUBEBUILDER_ASSETS")
    if not scripts or not binaries:
        raise NodesMissing(HOW_TO)
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or not Path("/usr/lib/cni/bridge").exists():
        raise NodesMissing(f"not installed: {', '.join(missing or ['containernetworking-plugins'])}")
    if os.geteuid() != 0:
        raise NodesMissing("real nodes need root")
    return Path(scripts), Path(binaries)


@dataclass
class RealCluster:
    """A control plane on a bridge, with real nodes `n1`, `n2`, ..."""

    directory: Path
    scripts: Path
    binaries: Path
    repository: Path
    environment: Path
    """The repository and the virtual environment as containers see them."""
    nodes: list[str] = field(default_factory=list)
    archives: list[Path] = field(default_factory=list)

    @classmethod
    def start(cls, directory: Path, n_nodes: int, gpus: int, seen: tuple[Path, Path]) -> RealCluster:
        """`seen`: see `visible_to_pods`. Raises `NodesMissing`."""
        cluster = cls(directory, *scripts_and_binaries(), *seen)
        cluster._run("start-control-plane.sh", str(directory), ADDR=BRIDGE)
        try:
            cluster.archives = [cluster.scripts / "images" / "hostfs.tar", cluster._archive_of_service()]
            cluster.archives += [Path(given) for name in ("WORKER", "SERVER") if (given := _given(name))]
            for index in range(1, n_nodes + 1):
                cluster._start_node(index, gpus)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "admin.kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        command = [str(self.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    @property
    def task_settings(self) -> dict[str, object]:
        """Of the backend: image and command of task pods."""
        if _given("WORKER"):
            return {"image": WORKER_IMAGE, "server_image": SERVER_IMAGE if _given("SERVER") else None}
        path = ":".join(str(self.repository / each) for each in ("contract", "workers", "client"))
        command = ("/usr/bin/env", f"PYTHONPATH={path}")
        python = str(self.environment / "bin" / "python")
        return {"image": "python:3.11-slim", "command": [*command, python, "-m", "optimus_workers", "{role}"]}

    def _archive_of_service(self) -> Path:
        """An image that runs `optimus`."""
        if given := _given("SERVICE"):
            return Path(given)
        root, archive = self.directory / "rootfs", self.directory / "service.tar"
        root.mkdir()
        with tarfile.open(self.scripts / "images" / "hostfs.tar") as image:
            layer = next(name for name in image.getnames() if name.endswith("layer.tar"))
            with tarfile.open(fileobj=image.extractfile(layer)) as files:
                files.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # Debian's Python has none
                files.extractall(root)
        packages = ("client", "contract", "cli", "service", "scheduler", "models", "simulator")
        path = ":".join(str(self.repository / each) for each in packages)
        command = ["/usr/bin/env", f"PYTHONPATH={path}", str(self.environment / "bin" / "python"), "-m", "optimus_cli"]
        made = [sys.executable, str(self.scripts / "mkimage.py"), str(root), str(archive), SERVICE_IMAGE]
        subprocess.run([*made, "--entrypoint", json.dumps(command)], check=True, capture_output=True)
        return archive

    def stop(self) -> None:
        for name in self.nodes:
            subprocess.run([str(self.directory / name / "stop")], check=False, capture_output=True)
        subprocess.run([str(self.directory / "stop")], check=False, capture_output=True)

    def _start_node(self, index: int, gpus: int) -> None:
        # Containers see the machine's Python and this repository, read-only: no image has to be built.
        mounts = sorted({"/usr", sys.base_prefix, str(self.repository), str(self.environment)})
        outermost = [path for path in mounts if not any(path != top and path.startswith(f"{top}/") for top in mounts)]
        self.nodes.append(f"n{index}")
        options = {"HOSTMOUNTS": self._shown(outermost), "GPUS": str(gpus), "IMAGES": str(self.scripts / "images")}
        self._run("start-node.sh", str(self.directory), str(index), *map(str, self.archives), **options)
        for other in range(1, index):
            # Pods reach those of other nodes directly: the machine itself need not forward anything.
            for here, there in ((index, other), (other, index)):
                route = ["route", "replace", f"10.244.{there}.0/24", "via", f"10.240.0.{10 + there}"]
                subprocess.run(["ip", "-n", f"kn{here}", *route], check=True, capture_output=True)

    def _shown(self, mounts: list[str]) -> str:
        """Built images have all but the tests' tasks, and this machine's files must not lie over theirs."""
        built = all(_given(name) for name in ("SERVICE", "WORKER"))
        return str(self.repository / "tests" / "tasks") if built else " ".join(mounts)

    def _run(self, script: str, *arguments: str, **options: str) -> None:
        environment = {**os.environ, "BIN": str(self.binaries), **options}
        done = subprocess.run(
            [str(self.scripts / script), *arguments], capture_output=True, text=True, env=environment, timeout=600
        )
        if done.returncode != 0:
            raise RuntimeError(f"{script} failed: {done.stdout[-1000:]}{done.stderr[-2000:]}")
