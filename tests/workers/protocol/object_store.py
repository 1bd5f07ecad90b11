"""A process that speaks S3 (moto's server), for tests of checkpoints in an object store."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from uuid import uuid4

from optimus_workers.checkpoint.storage import UrlStorage

_LISTENS = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
MISSING = "needs packages that have an environment of their own: `make object-store`"


class ObjectStoreMissing(Exception):
    """The packages are not installed here."""


class ObjectStore:
    """Runs until `close`. `environment` is what tasks need to find it, credentials included."""

    def __init__(self) -> None:
        if not all(importlib.util.find_spec(package) for package in ("s3fs", "moto", "flask_cors")):
            raise ObjectStoreMissing(MISSING)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", "0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:  # ends when the process does
            said.append(line)
            if found := _LISTENS.search(line):
                self.url = found[1]
                break
        else:
            raise AssertionError("".join(said))
        # It says every request: unread, it would wait for a reader before long.
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._reader.start()
        self.environment = {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "nothing secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_bucket(self) -> str:
        """The URL of an empty bucket."""
        from fsspec import filesystem

        name = f"bucket-{uuid4().hex}"
        filesystem("s3").mkdir(name)
        return f"s3://{name}"

    def storage(self, scratch: Path) -> UrlStorage:
        """In a bucket of its own."""
        return UrlStorage(f"{self.new_bucket()}/runs/job", scratch)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._reader.join(60)
        assert self._process.stderr is not None
        self._process.stderr.close()


def is_required() -> bool:
    """Whether its absence is a failure."""
    return os.environ.get("OPTIMUS_TEST_REQUIRE_S3") == "1"
