"""Exit codes of a task (docs/protocol.md, section 1), and how long it takes to leave."""

from __future__ import annotations

LET_GO = 0
USER_CODE_FAILED = 3
COORDINATOR_GONE = 4
HUNG = 5
"""The training code gave no sign for too long (see `worker/watchdog.py`)."""
TERMINATED = 143

LEAVE_SECONDS = 20.0
"""After SIGTERM: how long the coordinator has to let a task go before it goes by itself (Kubernetes kills after 30)."""
