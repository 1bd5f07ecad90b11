"""Which user the tasks of this machine run as, so that they cannot read what is the service's or another job's.

Only root can start processes of other users. The supervisor of a task stays root's: its record and its environment are
nothing to the task, and the task cannot end it. `setpriv` gives up what root may, for good, before anything of the
user's is touched, the working directory included.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optimus_service.clusters.base import ClusterUnavailable

SETTING = "OPTIMUS_TASK_USER"
_RANGE = re.compile(r"(\d+)-(\d+)")
_MAX_UID = 2**31 - 1
_CHECK_SECONDS = 60.0
"""For one start of the interpreter."""
_ENTER = 'cd "$1" || exit 3; shift; exec "$@"'
"""Exit code 3: the user has to mend something, here a directory that the task cannot enter."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine, who need not be in its list of users."""

    uid: int
    gid: int
    name: str
    home: str | None = None
    """None: not in the list of users, or without a directory."""
    is_listed: bool = False

    def command(self, directory: str, command: Sequence[str]) -> list[str]:
        """The command in `directory`, as this user, with no way back."""
        groups = "--init-groups" if self.is_listed else "--clear-groups"
        user = [f"--reuid={self.uid}", f"--regid={self.gid}", groups, "--no-new-privs", "--inh-caps=-all"]
        return ["setpriv", *user, "/bin/sh", "-c", _ENTER, "optimus-task", directory, *command]

    def environment(self, directory: str) -> dict[str, str]:
        """What the service's own user is called, and where its home is, is nothing to tasks. `directory`: the home of
        one without."""
        return {"HOME": self.home or directory, "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True, slots=True)
class TaskUsers:
    """One account for all jobs; or a range of user ids, of which each job has its own."""

    shared: Account | None
    uids: range = range(0)

    @classmethod
    def from_setting(cls, text: str) -> TaskUsers:
        """`text`: a user's name, or FIRST-LAST.

        Raises:
            ClusterUnavailable: it is neither, or this process cannot start processes of other users.
        """
        if os.geteuid() != 0:
            raise ClusterUnavailable(f"{SETTING} is set, but only root can start tasks as another user: run it as root")
        if shutil.which("setpriv") is None:
            raise ClusterUnavailable(f"{SETTING} needs the command setpriv (package util-linux)")
        found = _RANGE.fullmatch(text)
        if found is None:
            return cls(_account_named(text))
        first, last = int(found[1]), int(found[2])
        if not 0 < first < last <= _MAX_UID:
            raise ClusterUnavailable(
                f"{SETTING} must be FIRST-LAST with 0 < FIRST < LAST <= {_MAX_UID}, or a user's name, not {text!r}"
            )
        return cls(None, range(first, last + 1))

    @property
    def for_checks(self) -> Account:
        """Who looks at code before there is a job: of a range, the first, which no job gets."""
        return self.shared or _account(self.uids[0])

    def claim(self, directory: Path) -> Account:
        """The account of the job whose directory this is; the directory is its own from now on.

        Raises:
            ClusterUnavailable: no user id is left, or the directory belongs to somebody else.
            OSError: it cannot be given to the account.
        """
        owner = directory.lstat().st_uid
        if owner == os.geteuid():  # new, or of a time without the setting: nobody but the service has written there
            account = self.shared or _account(self._free_uid(directory.parent))
            _give(directory, account)
            return account
        if self.shared is not None and owner == self.shared.uid:
            return self.shared
        if owner in self.uids[1:]:
            return _account(owner)
        raise ClusterUnavailable(f"{directory} belongs to user id {owner}, which is not of {SETTING}: chown it")

    def _free_uid(self, jobs: Path) -> int:
        """One that owns no job's directory: so a job keeps its user id for as long as there is anything of it."""
        taken = {path.lstat().st_uid for path in jobs.iterdir()}
        free = next((uid for uid in self.uids[1:] if uid not in taken), None)
        if free is None:
            raise ClusterUnavailable(f"every user id of {SETTING} has a job's directory in {jobs}: delete old ones")
        return free

    def prepare(self, data_directory: Path, interpreter: str) -> None:
        """Let tasks pass through the data directory to their job's, and nobody read what else is there.

        Raises:
            ClusterUnavailable: tasks could not run: the directory or the interpreter is out of their reach.
        """
        jobs = data_directory / "jobs"
        jobs.mkdir(mode=0o711, exist_ok=True)
        for path in data_directory.iterdir():
            if path != jobs and not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
        for path in (data_directory, jobs):
            path.chmod(0o711)
        account = self.for_checks
        command = account.command(str(jobs.resolve()), [interpreter, "-c", ""])
        environment = {"PATH": os.environ.get("PATH", os.defpath)} | account.environment("/")
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False, env=environment, cwd="/"
        )
        if done.returncode:
            raise ClusterUnavailable(
                f"tasks cannot run as {account.name} ({SETTING}): {done.stderr.strip() or done.returncode}; "
                f"{jobs.resolve()} and {interpreter} must be within reach of that user (chmod o+x on the way)"
            )


def _account_named(name: str) -> Account:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ClusterUnavailable(f"{SETTING} is {name!r}, but this machine has no such user") from None
    if entry.pw_uid == 0:
        raise ClusterUnavailable(f"{SETTING} is {name!r}, which is root: name an unprivileged user")
    home = entry.pw_dir if Path(entry.pw_dir).is_dir() else None
    return Account(entry.pw_uid, entry.pw_gid, name, home, is_listed=True)


def _account(uid: int) -> Account:
    """Of a range: a group of the same number, and no other."""
    return Account(uid, uid, f"optimus-{uid}")


def _give(directory: Path, account: Account) -> None:
    """The directory itself last: a crash before leaves it to be given again."""
    for parent, folders, files in os.walk(directory):
        for name in (*folders, *files):
            os.lchown(os.path.join(parent, name), account.uid, account.gid)  # noqa: PTH118 - as os.walk gives them
    os.lchown(directory, account.uid, account.gid)
