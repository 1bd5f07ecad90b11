"""A training loop as anybody writes it: a fixed number of steps, no checkpoint, nothing of Optimus."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--width", type=int, default=512)
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, options.width), torch.nn.ReLU(), torch.nn.Linear(options.width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(1024, 64)
targets = inputs.sum(1, keepdim=True)
for step in range(1, options.steps + 1):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch declares no types for it
    optimizer.step()
    print(f"step {step}/{options.steps} loss {loss.item():.4f}", flush=True)
