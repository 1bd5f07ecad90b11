"""What a user writes who owns the training loop, with `optimus_client.elastic`; started by tests."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import optimus_client

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
parser.add_argument("--fsdp", action="store_true", help="shard the parameters over the processes")
parser.add_argument("--plain", action="store_true", help="step the optimizer without the run's help")
parser.add_argument("--large", action="store_true", help="a state whose saving takes time, saved at every step")
options = parser.parse_args()

torch.manual_seed(0)
width = 2000 if options.large else 16
inputs = torch.randn(103, 8)
data = TensorDataset(torch.arange(103), inputs, inputs.sum(1, keepdim=True).sin())
loader = DataLoader(data, batch_size=4 // int(os.environ["WORLD_SIZE"]) or 1, shuffle=True)
model: nn.Module = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 1))
if options.fsdp:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=78)

used = (options.directory / f"used-{os.getpid()}").open("w")
with optimus_client.elastic(
    model, optimizer, loader, scheduler, epochs=3, save_seconds=0.0 if options.large else 300.0
) as run:
    for indices, x, y in run:
        loss = nn.functional.mse_loss(run.model(x), y)
        if options.plain:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            run.report(loss)
        else:
            run.backward(loss)
            run.step()
        # An example that fills an empty place counts nothing.
        if run.counts:
            used.write("".join(f"{int(index)}\n" for index in indices))
        used.flush()
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))

if options.fsdp:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    dist.destroy_process_group()
else:
    state = model.state_dict()
if os.environ["RANK"] == "0":
    torch.save(state, options.directory / "final.pt")
