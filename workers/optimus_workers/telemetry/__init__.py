"""What a worker tells the service about its steps: recorded without blocking, sent by a thread of its own.

train loop ── Record ──▶ Aggregator ── sample ──▶ Outbox (bounded) ── batch ──▶ thread ── POST ──▶ service
                         ≥ 0.25 s each            drops the oldest              retries
"""

from optimus_workers.telemetry.samples import Record
from optimus_workers.telemetry.sender import Telemetry

__all__ = ["Record", "Telemetry"]
