"""Trains a small network in a loop of `optimus_client.elastic`: it may be stopped at any step.

torchrun elastic_train.py --epochs 10 --out final.pt
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import optimus_client


def hold(path: Path, step: int) -> None:
    """Wait while the step is not less than the number in the file, until told to stop."""
    while step >= int(path.read_text()) and not optimus_client.stop_requested():
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=0, help="of one more layer; 5000: 25 million parameters")
    parser.add_argument("--hold", help="a file with the number of the step at which to wait until told to stop")
    parser.add_argument("--accumulates", action="store_true", help="let the loop divide a step, and step the optimizer")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(960, 16, generator=generator)
    data = TensorDataset(inputs, inputs @ torch.randn(16, 1, generator=generator))
    torch.manual_seed(0)
    width = options.width or 64
    middle = [torch.nn.Linear(width, width), torch.nn.Tanh()] if options.width else []
    layers = [torch.nn.Linear(16, width), torch.nn.Tanh(), *middle, torch.nn.Linear(width, 1)]
    model = torch.nn.Sequential(*layers).to(torch.float32 if options.width else torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [150])
    loader = DataLoader(data, batch_size=48, shuffle=True)
    with optimus_client.elastic(model, optimizer, loader, scheduler, epochs=options.epochs) as run:
        told = run.step_number + 2  # the first step since the start, which says where it goes on, is told with the next
        for inputs, targets in run:
            kind = layers[0].weight.dtype
            loss = torch.nn.functional.mse_loss(run.model(inputs.to(kind)), targets.to(kind))
            if options.accumulates:
                run.backward(loss)
                run.step()
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                run.report(loss)
            if run.sync_gradients:
                time.sleep(options.step_seconds)
                if options.hold and run.step_number >= told:
                    hold(Path(options.hold), run.step_number)
    if int(os.environ.get("RANK") or 0) == 0:
        torch.save(model.state_dict(), options.out)


if __name__ == "__main__":
    main()
