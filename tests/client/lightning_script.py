"""A training with Lightning's Trainer as its documentation teaches, and our callback; started by tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import optimus_client
from optimus_client.lightning import OptimusCallback, last_checkpoint

directory = Path(sys.argv[1])


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def validation_step(self, batch: Any) -> None:
        self.log("val_loss", self.training_step(batch), sync_dist=True)

    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.manual_seed(0)
inputs = torch.randn(120, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
batch = optimus_client.worker_batch_size(4)
world = int(os.environ["WORLD_SIZE"])
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=1,
    num_nodes=world,
    strategy="ddp" if world > 1 else "auto",
    callbacks=[OptimusCallback()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    default_root_dir=directory,
    use_distributed_sampler=False,  # its own has another order than one process
)
sampler: DistributedSampler[Any] = DistributedSampler(data, world, int(os.environ["RANK"]))
trainer.fit(Regression(), DataLoader(data, batch, sampler=sampler), DataLoader(data, 8), ckpt_path=last_checkpoint())
if trainer.is_global_zero:
    torch.save(trainer.lightning_module.state_dict(), directory / "final.pt")
