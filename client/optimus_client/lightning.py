"""Lightning's Trainer (2.0 or later) under Optimus: it reports, saves and stops at a step boundary when asked, goes on.

trainer = Trainer(..., callbacks=[OptimusCallback()])
trainer.fit(model, loader, ckpt_path=last_checkpoint())
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment, no-redef, import-not-found, unused-ignore]

from .agreement import Agreement
from .batch import accumulation_steps, refuse_weak_scaling, warn_if_uneven
from .reporting import report, report_schedule, resumes, stopped

log = logging.getLogger("optimus_client")

FILE_NAME = "lightning.ckpt"


def last_checkpoint() -> str | None:
    """The checkpoint that `OptimusCallback` wrote last; None: there is none yet."""
    path = _path()
    return str(path) if path.exists() else None


def _path() -> Path:
    return Path(os.environ.get("OPTIMUS_CHECKPOINT_DIRECTORY") or "checkpoints") / FILE_NAME


class OptimusCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Reports steps, losses and evaluations; when asked, all processes save and stop after the same step.

    Where the job names its global batch, it sets `accumulate_grad_batches`; give the loader
    `optimus_client.worker_batch_size(...)`. `save_seconds`: between two checkpoints besides. A training that stops so
    ends the process with exit code 0, for what follows in the script belongs to its end; with
    `exit_when_stopped=False`, `fit()` returns and `is_stopped` says why, after Lightning's usual validation at an end.
    """

    def __init__(self, *, save_seconds: float = 300.0, exit_when_stopped: bool = True) -> None:
        super().__init__()
        self.is_stopped = False
        self._exits, self._save_seconds = exit_when_stopped, save_seconds
        self._agreement = Agreement()
        self._saved_at = time.monotonic()
        self._last = -1
        self._rate: Any = None
        """Of the step at hand."""
        self._accumulation: int | None = None
        """Batches of a step; before the training starts, those of the steps before its checkpoint, if there is one."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        refuse_weak_scaling("Lightning")
        if pl_module.automatic_optimization:
            trainer.accumulate_grad_batches = accumulation_steps(trainer.accumulate_grad_batches)

    def state_dict(self) -> dict[str, Any]:
        return {"accumulation_steps": self._accumulation}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._accumulation = state_dict["accumulation_steps"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        resumes()
        total, epochs = trainer.estimated_stepping_batches, trainer.max_epochs
        report(
            total_steps=total if isinstance(total, int) and total > 0 else None,
            total_epochs=epochs if epochs is not None and epochs > 0 else None,
        )
        self._last = trainer.global_step
        self._report_schedule(trainer)
        size = getattr(trainer.train_dataloader, "batch_size", None)
        if isinstance(size, int):
            warn_if_uneven(size * trainer.world_size * trainer.accumulate_grad_batches)
        before, self._accumulation = self._accumulation, trainer.accumulate_grad_batches
        if before is not None:
            _recount_batches(trainer.fit_loop, before, self._accumulation)
        _skip_used_batches(trainer.fit_loop)

    def _report_schedule(self, trainer: Any) -> None:
        """The learning rates to come, of the only scheduler of the only optimizer."""
        total, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
        known = all(isinstance(each, int) and each > 0 for each in (total, batches))
        if not known or len(trainer.optimizers) != 1 or len(trainer.lr_scheduler_configs) != 1:
            return
        each = trainer.lr_scheduler_configs[0]
        per_epoch = -(-batches // trainer.accumulate_grad_batches)
        per_steps = each.frequency * (per_epoch if each.interval == "epoch" else 1)
        step = trainer.global_step
        report_schedule(each.scheduler, step=step, total_steps=total, per_steps=per_steps, begun=step % per_steps)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._rate = next((group["lr"] for each in trainer.optimizers for group in each.param_groups), None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step == self._last or self.is_stopped:
            return  # gradients accumulate
        self._last = step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:  # Lightning divides it by the number of batches whose gradients accumulate
            loss = loss * trainer.accumulate_grad_batches
        batches = trainer.num_training_batches
        known = isinstance(batches, int) and batches > 0
        report(
            step=step,
            loss=loss,
            epoch=trainer.current_epoch + (batch_idx + 1) / batches if known else None,
            learning_rate=self._rate,
        )
        is_due = trainer.is_global_zero and time.monotonic() - self._saved_at >= self._save_seconds
        stops, saves = self._agreement.ask(step, save=is_due)
        if stops or saves:
            self._save(trainer)
        if stops:
            self.is_stopped = True
            if trainer.is_global_zero:
                stopped(step)
            if self._exits:
                sys.exit(0)
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            report(step=trainer.global_step, metrics=dict(trainer.callback_metrics))

    def _save(self, trainer: Any) -> None:
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{FILE_NAME}.new")
        trainer.save_checkpoint(scratch)  # on all processes: it waits for them
        if trainer.is_global_zero:
            scratch.replace(path)
        self._saved_at = time.monotonic()


def _recount_batches(loop: Any, before: int, now: int) -> None:
    """Go on at the same example: Lightning counts batches, of which a step had `before` and has `now` so many."""
    counts = loop.epoch_loop.batch_progress
    for progress in (counts.total, counts.current):
        change = progress.processed * now // before - progress.processed
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress, name, getattr(progress, name) + change)


def _skip_used_batches(loop: Any) -> None:
    """After a stop inside an epoch, go on with the batches after those that were used.

    Lightning counts them, but begins with the first ones again unless the loader keeps its own position.
    """
    n_used = loop.epoch_loop.batch_progress.current.processed
    fetcher = getattr(loop, "_data_fetcher", None)
    loaders = getattr(getattr(loop, "_combined_loader", None), "flattened", ())
    if n_used == 0 or n_used >= loop.max_batches or all(hasattr(each, "load_state_dict") for each in loaders):
        return
    if fetcher is None or not hasattr(fetcher, "fetched"):
        log.warning("this version of Lightning uses the first %d batches of the epoch again", n_used)
        return
    for loader in loaders:  # Lightning does so later
        for sampler in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(loop.epoch_progress.current.processed)
    iter(fetcher)  # what is there may have begun with the order of another epoch
    for _ in range(n_used):
        next(fetcher, None)
    fetcher.fetched = 0  # Lightning adds them itself
