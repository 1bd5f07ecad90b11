"""The service by its settings, after the code that is given, for processes that tests fork."""

from __future__ import annotations

import sys

from optimus_service.server import run
from optimus_service.settings import Settings

if __name__ == "__main__":
    exec(sys.argv[1])
    run(Settings())
