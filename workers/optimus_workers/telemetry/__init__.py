"""What a worker reports of its steps to the service: recorded without blocking, sent by a thread of its own.

train loop ── a step ─▶ Aggregator ── sample ──▶ Outbox (bounded) ── batch ──▶ thread ── POST ──▶ service
                         ≥ 0.25 s each            drops the oldest              retries
"""

from optimus_workers.telemetry.sender import Telemetry

__all__ = ["Telemetry"]
