"""A PostgreSQL server for the tests alone, made from the installed binaries.

It lives in a directory of its own, listens on a unix socket there and nowhere else, and dies with the tests. Servers
that run on the machine already are not touched.
"""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

_START_SECONDS = 60
"""A start takes a second; a machine under load gets more."""
_ROLE = "optimus"
# Nothing here must survive a crash, so nothing waits for the disk.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
}


class PostgresMissing(Exception):
    """PostgreSQL's server binaries are not installed."""


def find_binaries() -> Path:
    """The directory with `initdb` and `postgres`: the newest of Debian's, or the one on PATH.

    Raises:
        PostgresMissing: neither exists.
    """
    debian = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if debian:
        return max(debian, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)])
    on_path = shutil.which("initdb")
    if on_path is None:
        raise PostgresMissing("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return Path(on_path).resolve().parent


class PostgresCluster:
    """One running server."""

    def __init__(self) -> None:
        """Make the cluster and wait until it answers.

        Raises:
            PostgresMissing: there are no binaries.
            RuntimeError: the server did not start; the message has the end of its log.
        """
        self._binaries = find_binaries()
        self._account = _unprivileged_account()
        self._directory = Path(tempfile.mkdtemp(prefix="optimus-pg-"))
        self._log = self._directory / "log"
        self._numbers = itertools.count()
        try:
            self._initialise()
            self._process = self._start()
            self._version = self._wait_until_ready()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of a database of this cluster."""
        return f"postgresql://{_ROLE}@/{database}?host={self._directory}"

    def create_database(self, template: str = "template1") -> str:
        """A new database, made as a copy of `template`; its name."""
        name = f"test_{next(self._numbers)}"
        # Copying the files is twice as fast as copying through the log, which newer versions do by default.
        strategy = "STRATEGY FILE_COPY" if self._version >= 150_000 else ""
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def empty_database(self, name: str) -> None:
        """Delete all rows and count ids from 1 again; far cheaper than another copy of a template.

        Connections that a failed test left behind are closed.
        """
        self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        with self._connect(name) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            connection.execute("SET session_replication_role = replica")  # no order among tables to keep
            statements = [f"DELETE FROM {table}" for (table,) in tables if table != "alembic_version"]
            statements.append("SELECT setval(seqrelid, 1, false) FROM pg_sequence")
            connection.execute("; ".join(statements).encode())

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Refuse to write for a while, as a server does that is being replaced by its standby."""
        self._execute("ALTER SYSTEM SET default_transaction_read_only = on")
        self._execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            self._execute("ALTER SYSTEM RESET default_transaction_read_only")
            self._execute("SELECT pg_reload_conf()")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of the server's processes for a while, as a machine that hangs does: connections stay open."""
        self._signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_all(signal.SIGCONT)

    def _signal_all(self, what: signal.Signals) -> None:
        for process in self._processes():
            with suppress(ProcessLookupError):  # it has ended since it was listed
                os.kill(process, what)

    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [self._process.pid, *map(int, children)]

    def close(self) -> None:
        """Stop the server at once and delete everything."""
        self._process.send_signal(signal.SIGQUIT)  # an immediate shutdown, which still frees the shared memory
        self._process.wait(_START_SECONDS)
        shutil.rmtree(self._directory)

    def _initialise(self) -> None:
        if self._account is not None:
            os.chown(self._directory, self._account.pw_uid, self._account.pw_gid)
        options = ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", f"--username={_ROLE}"]
        command = [str(self._binaries / "initdb"), f"--pgdata={self._directory / 'data'}", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **self._identity())
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr}")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [str(self._binaries / "postgres"), "-D", str(self._directory / "data"), "-k", str(self._directory)]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "QUIT", *command]  # a killed test run leaves no server behind
        with self._log.open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._identity())

    def _wait_until_ready(self) -> int:
        """The version of the server, as a number like 150018, once it answers."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with self._connect() as connection:
                    return connection.info.server_version
            except psycopg.OperationalError as error:
                if self._has_exited_within(0.05) or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text()[-2000:]}") from error

    def _has_exited_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _execute(self, statement: str) -> None:
        with self._connect() as connection:
            connection.execute(statement.encode())

    def _connect(self, database: str = "postgres") -> psycopg.Connection:
        writes = "-c default_transaction_read_only=off"  # whatever `read_only` has set
        return psycopg.connect(host=str(self._directory), user=_ROLE, dbname=database, autocommit=True, options=writes)

    def _identity(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root: whom to run it as, for `subprocess`."""
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}


def _unprivileged_account() -> pwd.struct_passwd | None:
    """None when the tests do not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")
