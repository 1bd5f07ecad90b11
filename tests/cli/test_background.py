"""The service in the background, as the command that starts it sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from optimus_cli import background
from optimus_cli.background import _ended_with_this_process

ENDLESS = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.parametrize(
    ("interruption", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=str
)
@pytest.mark.parametrize("comes", ["while it begins", "while it is waited for"])
def test_an_interruption_ends_the_process_whenever_it_comes(
    interruption: signal.Signals, raised: type[BaseException], comes: str
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(ENDLESS, start_new_session=True))
        if comes == "while it begins":
            os.kill(os.getpid(), interruption)
        return begun[0]

    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(raised), _ended_with_this_process(begin):
        os.kill(os.getpid(), interruption)
    assert begun[0].wait(60.0) == -signal.SIGTERM
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_service_that_opens_and_closes_files_as_it_starts_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_age_seconds", lambda _pid: 0.0)
    is_over = threading.Event()

    def import_modules() -> None:
        while not is_over.is_set():
            for _ in range(20):
                with (tmp_path / "module").open("w"):
                    pass

    thread = threading.Thread(target=import_modules)
    thread.start()
    try:
        assert all(background._may_get(os.getpid(), tmp_path) for _ in range(300))
    finally:
        is_over.set()
        thread.join()
