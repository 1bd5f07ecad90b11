"""The data directory: made private, kept to one service, and where the address is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from optimus_service.process.data_directory import CannotStart, DataDirectory

HOLD = """
import sys
from pathlib import Path
from optimus_service.process.data_directory import DataDirectory
with DataDirectory.locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    with DataDirectory.locked(tmp_path / "deep" / "data") as directory:
        assert directory.path.stat().st_mode & 0o777 == 0o700


def test_second_service_is_kept_out_until_the_first_is_dead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(CannotStart, match="another service is running"), DataDirectory.locked(tmp_path):
            pass
        holder.kill()
        holder.wait(60)
        with DataDirectory.locked(tmp_path):
            pass


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="cannot be used"), DataDirectory.locked(tmp_path / "file" / "data"):
        pass


def test_address_is_told_and_taken_back(tmp_path: Path) -> None:
    with DataDirectory.locked(tmp_path) as directory:
        directory.write_address("http://127.0.0.1:1", "0.1.0")
        told = json.loads((tmp_path / "service.json").read_text())
        assert (told["url"], told["version"]) == ("http://127.0.0.1:1", "0.1.0")
        directory.remove_address()
        directory.remove_address()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]
