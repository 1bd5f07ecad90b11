"""Trains a small network in an Accelerate loop, as its documentation teaches: its saved state is gone on from. It knows
nothing of Optimus.

    accelerate launch accelerate_loop.py --directory out
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--hold", help="a file with the step after which to wait; FILE.at says where it waits")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(960, 16, generator=generator)
    outputs = inputs @ torch.randn(16, 1, generator=generator)
    data = TensorDataset(inputs, outputs)
    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=48, shuffle=True))
    step, progress = 0, os.path.join(options.directory, "progress.json")
    if os.path.exists(progress):
        with open(progress) as file:
            step = json.load(file)["step"]
        accelerator.load_state(os.path.join(options.directory, f"step_{step}"))
    while step < options.steps:
        for batch, targets in loader:
            loss = torch.nn.functional.mse_loss(model(batch), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            time.sleep(options.step_seconds)
            while options.hold and step > int(Path(options.hold).read_text()):
                Path(options.hold + ".at").write_text(str(step))
                time.sleep(0.05)
            accelerator.print(f"step {step}/{options.steps} loss {loss.item():.4f}", flush=True)
            if step % 10 == 0:
                accelerator.save_state(os.path.join(options.directory, f"step_{step}"))
                if accelerator.is_main_process:
                    with open(progress + ".new", "w") as file:
                        json.dump({"step": step}, file)
                    os.replace(progress + ".new", progress)
            if step == options.steps:
                break
    with torch.no_grad():
        accelerator.print(f"eval_loss {torch.nn.functional.mse_loss(model(inputs), outputs).item():.6f}")


if __name__ == "__main__":
    main()
