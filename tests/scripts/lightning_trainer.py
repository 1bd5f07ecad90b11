"""Trains a small network with Lightning's Trainer, as its documentation teaches: the last checkpoint is gone on from.
It knows nothing of Optimus.

    torchrun lightning_trainer.py --directory out
"""

import argparse
import os
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Network(LightningModule):
    def __init__(self, step_seconds: float, hold: str | None) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.step_seconds, self.hold = step_seconds, hold

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("train_loss", loss, prog_bar=True)
        time.sleep(self.step_seconds)
        while self.hold and self.global_step >= int(Path(self.hold).read_text()):
            Path(self.hold + ".at").write_text(str(self.global_step))
            if self.trainer.received_sigterm:  # Lightning ends at the end of the step
                break
            time.sleep(0.05)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.log("eval_loss", torch.nn.functional.mse_loss(self.layers(inputs), targets), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=48, help="examples of one step over all processes")
    parser.add_argument("--worker-batch", type=int, help="in place of it, examples of each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--hold", help="a file with the step after which to wait; FILE.at says where it waits")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(960, 16, generator=generator)
    data = TensorDataset(inputs, inputs @ torch.randn(16, 1, generator=generator))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if world > 1 else "auto",
        logger=False,
        callbacks=[ModelCheckpoint(options.directory, save_last=True, every_n_train_steps=10)],
    )
    last = os.path.join(options.directory, "last.ckpt")
    loader = DataLoader(data, batch_size=options.worker_batch or options.batch // world, shuffle=True)
    network = Network(options.step_seconds, options.hold)
    trainer.fit(network, loader, ckpt_path=last if os.path.exists(last) else None)
    trainer.validate(network, DataLoader(data, batch_size=320))


if __name__ == "__main__":
    main()
