"""A real Kubernetes control plane for tests: etcd, API server, controller manager and scheduler on loopback, no root.

Found as envtest finds it: `KUBEBUILDER_ASSETS` names the directory of the binaries. `OPTIMUS_TEST_KUBECONFIG` names an
existing cluster instead, in which the tests make namespaces (and nothing else that they do not remove).
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from optimus_workers.wire.ports import reserve_port

HOW_TO = (
    "no Kubernetes control plane: set KUBEBUILDER_ASSETS to a directory with etcd, kube-apiserver, "
    "kube-controller-manager, kube-scheduler and kubectl (`setup-envtest use` fetches the first two and kubectl), "
    "or OPTIMUS_TEST_KUBECONFIG to the configuration of a cluster that tests may use"
)
_START_SECONDS = 120.0
_USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}


class ControlPlaneMissing(Exception):
    """There are no binaries; the message says how to get some."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where the programs are."""

    etcd: Path
    directory: Path

    @classmethod
    def find(cls) -> Binaries:
        """Raises `ControlPlaneMissing`."""
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        if not assets:
            raise ControlPlaneMissing(HOW_TO)
        directory = Path(assets)
        etcd = next((found for found in (directory / "etcd", _on_path("etcd")) if found and found.exists()), None)
        missing = [name for name in ("kube-apiserver", "kubectl") if not (directory / name).exists()]
        if etcd is None or missing:
            lacks = ", ".join([*missing, *(["etcd"] if etcd is None else [])])
            raise ControlPlaneMissing(f"KUBEBUILDER_ASSETS={assets} lacks {lacks}; {HOW_TO}")
        if shutil.which("openssl") is None:
            raise ControlPlaneMissing("the program openssl is needed to make a key for service accounts")
        return cls(etcd, directory)

    def has_controllers(self) -> bool:
        """envtest's own archives have no controller manager and no scheduler."""
        return all((self.directory / name).exists() for name in ("kube-controller-manager", "kube-scheduler"))


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


class ControlPlane:
    """One running control plane; everything of it is in a temporary directory and dies with the tests."""

    def __init__(self, binaries: Binaries) -> None:
        self.binaries = binaries
        self.directory = Path(tempfile.mkdtemp(prefix="optimus-k8s-", dir=_fast_directory()))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens = {user: secrets.token_hex(16) for user in _USERS}
        self._etcd_port, self._peer_port, self.port, kcm, scheduler = (reserve_port("127.0.0.1") for _ in range(5))
        self._ports = {"controller-manager": kcm, "scheduler": scheduler}
        try:
            self._write_files()
            self.start_etcd()
            self.start_api_server()
            self._start_controllers()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig("admin")

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._spawn(
            "etcd",
            self.binaries.etcd,
            "--name=test",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=test={peer}",
        )

    def start_api_server(self) -> None:
        """Also after `stop_api_server`: on the same port, with the same data."""
        key = self.directory / "service-account.key"
        self._spawn(
            "kube-apiserver",
            self.binaries.directory / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.directory / 'certificates'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--allow-privileged=true",
        )
        self._wait("the API server is ready", self._is_ready)
        self._write_kubeconfigs()

    def stop_api_server(self) -> None:
        """Kill it, as a crash would."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl printed; fails when it failed."""
        command = [str(self.binaries.directory / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        """End everything, delete everything."""
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _start_controllers(self) -> None:
        if not self.binaries.has_controllers():
            return
        for name, more in (
            (
                "controller-manager",
                [
                    f"--service-account-private-key-file={self.directory / 'service-account.key'}",
                    f"--root-ca-file={self.directory / 'certificates' / 'apiserver.crt'}",
                    "--use-service-account-credentials=true",
                    # nodeipam sleeps 10 s before anything starts; nothing here needs pod networks
                    "--controllers=*,-nodeipam,-route,-service,-cloud-node-lifecycle",
                    # nobody sends heartbeats for fake nodes
                    "--node-monitor-grace-period=1h",
                ],
            ),
            ("scheduler", []),
        ):
            configuration = self._kubeconfig(f"system:kube-{name}")
            self._spawn(
                f"kube-{name}",
                self.binaries.directory / f"kube-{name}",
                f"--kubeconfig={configuration}",
                f"--authentication-kubeconfig={configuration}",
                f"--authorization-kubeconfig={configuration}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._ports[name]}",
                "--leader-elect=false",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
                f"--cert-dir={self.directory / 'certificates' / name}",
                *(["--port=0"] if self._has_insecure_ports() else []),
                *more,
            )
        self._wait("the default service account exists", self._has_default_account)

    def _has_insecure_ports(self) -> bool:
        """Up to 1.23, the two also listen on well-known ports, where others may sit."""
        answer = self._get("/version")
        return answer is not None and int(json.loads(answer)["minor"].rstrip("+")) < 24

    def _has_default_account(self) -> bool:
        answer = self._get("/api/v1/namespaces/default/serviceaccounts/default")
        # Up to 1.23, pods are refused until the account's token has been made.
        return answer is not None and (not self._has_insecure_ports() or bool(json.loads(answer).get("secrets")))

    def _is_ready(self) -> bool:
        return self._get("/readyz") == b"ok"

    def _get(self, path: str) -> bytes | None:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self._tokens['admin']}"})
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                found: bytes = answer.read()
                return found
        except (urllib.error.URLError, OSError):
            return None

    def _wait(self, what: str, condition: object) -> None:
        assert callable(condition)
        pause, give_up_at = Event(), time.monotonic() + _START_SECONDS
        while not condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {self.log_of(name)}")
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"not in time: {what}; {self.log_of('kube-apiserver')}")
            pause.wait(0.1)

    def log_of(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")[-2000:]

    def _spawn(self, name: str, program: Path, *arguments: str) -> None:
        command = [str(program), *arguments]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", signal.SIGKILL.name.removeprefix("SIG"), *command]
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/")

    def _write_files(self) -> None:
        key = self.directory / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        rows = [
            f'{self._tokens[user]},{user},{number},"{group}"' for number, (user, group) in enumerate(_USERS.items())
        ]
        (self.directory / "tokens.csv").write_text("\n".join(rows) + "\n")

    def _kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user.removeprefix('system:')}.kubeconfig"

    def _write_kubeconfigs(self) -> None:
        authority = (self.directory / "certificates" / "apiserver.crt").read_bytes()
        for user, token in self._tokens.items():
            self._kubeconfig(user).write_text(json.dumps(kubeconfig(self.url, authority, token), indent=1))


def kubeconfig(url: str, authority: bytes, token: str) -> dict[str, object]:
    """The configuration of a client that shows this bearer token."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(authority).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _fast_directory() -> str | None:
    """etcd waits for the disk at every write; memory is quicker."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None
