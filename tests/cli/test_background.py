"""The service in the background, as the command that starts it sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

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
