"""Lightning: save and stop at a step boundary when the number of workers changes, and go on from there.

trainer = Trainer(..., callbacks=[OptimusCallback()])
trainer.fit(model, loader, ckpt_path=last_checkpoint())
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Optional

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment, no-redef, import-not-found, unused-ignore]

from optimus_client.agreement import StopAgreement
from optimus_client.reporting import report, resumes, stopped

FILE_NAME = "lightning.ckpt"


def _directory() -> Path:
    return Path(os.environ.get("OPTIMUS_CHECKPOINT_DIRECTORY") or "checkpoints")


def last_checkpoint() -> Optional[str]:
    """The checkpoint that `OptimusCallback` wrote; None: there is none yet."""
    path = _directory() / FILE_NAME
    return str(path) if path.exists() else None


class OptimusCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Reports steps and losses; saves and ends when it is asked to, on all processes at the same step."""

    def __init__(self, save_every_n_steps: int = 200) -> None:
        super().__init__()
        self._agreement = StopAgreement()
        self._every = save_every_n_steps
        self._last = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        resumes()
        total = trainer.estimated_stepping_batches
        known = isinstance(total, int) and total > 0
        report(step=trainer.global_step or None, total_steps=total if known else None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step == self._last:
            return  # gradients are accumulated: no optimizer step
        self._last = step
        if trainer.is_global_zero:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            report(step=step, loss=loss)
        if self._agreement.should_stop(step):
            self._save(trainer)
            if trainer.is_global_zero:
                stopped(step)
            sys.exit(0)
        if step % self._every == 0:
            self._save(trainer)

    def _save(self, trainer: Any) -> None:
        path = _directory() / FILE_NAME
        scratch = path.with_name(FILE_NAME + ".new")
        trainer.save_checkpoint(scratch)  # on all processes: it waits for them
        if trainer.is_global_zero:
            scratch.replace(path)
