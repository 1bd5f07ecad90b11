"""Trains a small network with FSDP, as PyTorch's tutorial does: sharded checkpoints, readable with another number of
processes. It knows nothing of Optimus.

    torchrun fsdp_train.py --directory out
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--hold", help="a file with the step after which to wait; FILE.at says where it waits")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    newest = os.path.join(options.directory, "newest")
    step = 0
    if os.path.exists(newest):
        with open(newest) as file:
            step = int(file.read())
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=os.path.join(options.directory, str(step)))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    generator = torch.Generator().manual_seed(1000 * options.seed + dist.get_rank())
    truth = torch.randn(16, 1, generator=torch.Generator().manual_seed(7))
    while step < options.steps:
        inputs = torch.randn(64 // dist.get_world_size(), 16, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(options.step_seconds)
        while options.hold and step > int(Path(options.hold).read_text()):
            Path(options.hold + ".at").write_text(str(step))
            time.sleep(0.05)
        if dist.get_rank() == 0:
            print(f"step {step}/{options.steps} loss {loss.item():.4f}", flush=True)
        if step % 10 == 0:
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=os.path.join(options.directory, str(step)))
            if dist.get_rank() == 0:
                with open(newest + ".new", "w") as file:
                    file.write(str(step))
                os.replace(newest + ".new", newest)
    with torch.no_grad():
        inputs = torch.randn(1024, 16, generator=torch.Generator().manual_seed(8))
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ truth)
    if dist.get_rank() == 0:
        print(f"eval_loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
