"""A PostgreSQL server of its own for the soak, which can be killed and started again."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 120.0
_USER = "postgres"


class Postgres:
    """One server in a directory, on a unix socket there. It waits for the disk at each commit, as it comes."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._binaries = binaries
        self.url = f"postgresql://{self._account}@/postgres?host={folder}"

    @property
    def _account(self) -> str:
        """Whom it runs as: PostgreSQL refuses root."""
        return _USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name

    def create(self) -> None:
        """Make the directory, and start."""
        if os.geteuid() == 0:
            account = pwd.getpwnam(_USER)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", self._account)
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers: after a kill it first replays its log. Raises `TimeoutError`."""
        end = time.monotonic() + START_SECONDS
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c max_connections=60"
        while time.monotonic() < end:
            done = self._call(
                "pg_ctl", "-D", str(self._data), "-w", "-o", options, "-l", f"{self._folder}/log", "start"
            )
            if done.returncode == 0:
                return
            time.sleep(0.5)
        raise TimeoutError((self._folder / "log").read_text()[-2000:])

    def kill(self) -> None:
        """SIGKILL to the server; its processes see that and end."""
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    def stop(self) -> None:
        """End in an orderly way."""
        self._call("pg_ctl", "-D", str(self._data), "-m", "fast", "-w", "stop")

    def _run(self, *words: str) -> None:
        done = self._call(*words)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def _call(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._binaries / program), *words]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups", *command]
        # Not a pipe: the server would inherit it and keep whoever reads it waiting.
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run(command, stdout=said, stderr=said, cwd="/", check=False)
            said.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, "", said.read())


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server; its directory is removed at the end. Raises `RuntimeError` where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise RuntimeError("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Postgres(folder, found[-1].parent)
        server.create()
        try:
            yield server
        finally:
            server.stop()
