"""Trains a small network in one process, in the loop that every tutorial begins with; a checkpoint every epoch. It
knows nothing of Optimus.

    python plain_loop.py --directory out --epochs 12
"""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(960, 16, generator=generator)
    outputs = inputs @ torch.randn(16, 1, generator=generator)
    data = TensorDataset(inputs, outputs)
    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    os.makedirs(options.directory, exist_ok=True)
    path, first = os.path.join(options.directory, "checkpoint.pt"), 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    loader = DataLoader(data, batch_size=96, shuffle=True)
    for epoch in range(first, options.epochs):
        for i, (batch, targets) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(options.step_seconds)
            if (i + 1) % 5 == 0:
                print(f"Epoch [{epoch + 1}/{options.epochs}], Step [{i + 1}/{len(loader)}], Loss: {loss.item():.4f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path + ".new")
        os.replace(path + ".new", path)
    with torch.no_grad():
        print(f"eval_loss {torch.nn.functional.mse_loss(model(inputs), outputs).item():.6f}")


if __name__ == "__main__":
    main()
