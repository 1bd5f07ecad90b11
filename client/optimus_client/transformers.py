"""Hugging Face Trainer: save and stop at a step boundary when the number of workers changes, and go on from there.

trainer = Trainer(..., callbacks=[OptimusCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint(args))
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from optimus_client.agreement import StopAgreement
from optimus_client.reporting import report, resumes, stopped


def last_checkpoint(args: Any) -> Optional[str]:
    """The newest checkpoint in the `output_dir` of these `TrainingArguments`; None: there is none yet."""
    if not Path(args.output_dir).is_dir():
        return None
    found: Optional[str] = get_last_checkpoint(args.output_dir)  # type: ignore[no-untyped-call, unused-ignore]
    return found


class OptimusCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Reports steps and losses; saves and ends when it is asked to, on all processes at the same step."""

    def __init__(self) -> None:
        self._agreement = StopAgreement()
        self._stopping = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        resumes()
        report(step=state.global_step or None, total_steps=state.max_steps, total_epochs=state.num_train_epochs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            report(step=state.global_step, epoch=state.epoch)
        if self._agreement.should_stop(state.global_step):
            self._stopping = True
            control.should_save = True
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[dict[str, Any]] = None, **_: Any) -> None:
        found = logs or {}
        if state.is_world_process_zero and "loss" in found:
            report(
                step=state.global_step, loss=found["loss"], epoch=state.epoch, learning_rate=found.get("learning_rate")
            )

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Optional[dict[str, Any]] = None, **_: Any
    ) -> None:
        if state.is_world_process_zero and metrics:
            report(step=state.global_step, metrics=metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._stopping:
            if state.is_world_process_zero:
                stopped(state.global_step)
            sys.exit(0)  # what follows the training in the script is for its end
