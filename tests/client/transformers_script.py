"""A fine-tuning with Hugging Face's Trainer as its documentation teaches, and our callback; started by tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from optimus_client.transformers import OptimusCallback, last_checkpoint, with_batch

directory = Path(sys.argv[1])


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers(x)
        return {"loss": nn.functional.mse_loss(found, labels), "logits": found}


class Slow(TrainerCallback):
    def on_step_end(self, *_: Any, **__: Any) -> None:
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))


torch.manual_seed(0)
inputs = torch.randn(120, 8)
data = [{"x": x, "labels": x.sum().sin().reshape(1)} for x in inputs]
args = with_batch(
    TrainingArguments(
        output_dir=str(directory / "output"),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        learning_rate=0.01,
        logging_steps=5,
        eval_strategy="epoch",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
)
model = Regression()
trainer = Trainer(
    model=model, args=args, train_dataset=data, eval_dataset=data[:8], callbacks=[OptimusCallback(), Slow()]
)
trainer.train(resume_from_checkpoint=last_checkpoint(args))
if trainer.is_world_process_zero():
    torch.save(model.state_dict(), directory / "final.pt")
