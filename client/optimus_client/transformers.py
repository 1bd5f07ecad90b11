"""Hugging Face's Trainer under Optimus: it reports, saves and stops at a step boundary when asked, and goes on.

trainer = Trainer(..., callbacks=[OptimusCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint(args))        # or: resume(trainer)
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from .agreement import Agreement
from .batch import accumulation_steps, global_batch_size, refuse_weak_scaling, warn_if_uneven, worker_batch_size
from .reporting import report, report_schedule, resumes, stopped

_NOT_METRICS = ("loss", "grad_norm", "learning_rate", "epoch", "step")


def last_checkpoint(args: Any) -> str | None:
    """The newest whole checkpoint in the `output_dir` of these `TrainingArguments`; None: there is none yet.

    A process that is killed while it saves leaves a checkpoint without its state, which does not count.
    """
    directory = Path(args.output_dir)
    steps = {path: path.name.rpartition("-")[2] for path in directory.glob("checkpoint-*")}
    whole = [path for path, step in steps.items() if step.isdigit() and _is_whole(path)]
    return str(max(whole, key=lambda path: int(steps[path]))) if whole else None


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_bytes())  # what is written last
    except (OSError, ValueError):
        return False
    return True


def with_batch(args: Any) -> Any:
    """These `TrainingArguments` with the batch that this process is to use, where the job names its global batch."""
    args.per_device_train_batch_size = worker_batch_size(args.per_device_train_batch_size)
    args.gradient_accumulation_steps = accumulation_steps(args.gradient_accumulation_steps)
    return args


def resume(trainer: Any) -> Any:
    """`trainer.train`, from the newest checkpoint if there is one."""
    return trainer.train(resume_from_checkpoint=last_checkpoint(trainer.args))


class OptimusCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Reports steps, losses and evaluations; when asked, all processes save and stop after the same step.

    Where the job names its global batch, it sets `gradient_accumulation_steps` so that a step has that many examples;
    `with_batch` sets `per_device_train_batch_size` as well, which a callback cannot.

    A training that stops so ends the process with exit code 0, for what follows in the script belongs to its end;
    with `exit_when_stopped=False`, `train()` returns and `is_stopped` says why.
    """

    def __init__(self, *, exit_when_stopped: bool = True) -> None:
        self.is_stopped = False
        self._exits = exit_when_stopped
        self._agreement = Agreement()
        self._rate: float | None = None
        """Of the step at hand."""

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        refuse_weak_scaling("the Trainer")
        given = global_batch_size()
        if given is None:
            return
        # The Trainer has fixed its batch per device by now; the accumulation it looks up when it trains.
        at_once = args.train_batch_size * args.world_size
        args.gradient_accumulation_steps = max(1, -(-given // at_once))
        warn_if_uneven(at_once * args.gradient_accumulation_steps)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        resumes()
        report(total_steps=state.max_steps, total_epochs=args.num_train_epochs if args.max_steps <= 0 else None)
        report_schedule(kwargs.get("lr_scheduler"), step=state.global_step, total_steps=state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self._rate = None if optimizer is None else optimizer.param_groups[0].get("lr")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        report(step=state.global_step, epoch=state.epoch, examples=_examples(args), learning_rate=self._rate)
        stops, _saves = self._agreement.ask(state.global_step)
        if stops and state.global_step < state.max_steps:
            self.is_stopped = True
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            report(step=state.global_step, loss=logs["loss"], epoch=state.epoch)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **_: Any) -> None:
        values = {name: value for name, value in (metrics or {}).items() if name not in _NOT_METRICS}
        report(step=state.global_step, metrics=values)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.is_stopped:
            return
        if state.is_world_process_zero:
            stopped(state.global_step)
        if self._exits:
            _leave()


def _examples(args: Any) -> int:
    """Of one step over all processes."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and "RANK" in os.environ:
        dist.destroy_process_group()
    sys.exit(0)
