"""Trains a small network with DistributedDataParallel, as PyTorch's tutorial on torchrun does: a snapshot every few
steps, from which a later start goes on. It knows nothing of Optimus.

    torchrun ddp_train.py --steps 200 --snapshot snapshot.pt
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1024, 16, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(16, 1, generator=generator))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="examples of one step over all processes")
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--snapshot-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--hold", help="a file with the step after which to wait; FILE.at says where it waits")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    if os.path.exists(options.snapshot):
        snapshot = torch.load(options.snapshot)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        step = snapshot["step"]
        print(f"resuming from step {step}")

    data = dataset()
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=options.seed)
    loader = DataLoader(data, batch_size=max(1, options.batch // world), sampler=sampler)
    epoch = 0
    while step < options.steps:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            time.sleep(options.step_seconds)
            while options.hold and step > int(Path(options.hold).read_text()):
                Path(options.hold + ".at").write_text(str(step))
                time.sleep(0.05)
            if rank == 0:
                print(f"step {step}/{options.steps} loss {loss.item():.4f}")
                if step % options.snapshot_every == 0 or step == options.steps:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, options.snapshot + ".new")
                    os.replace(options.snapshot + ".new", options.snapshot)
            if step == options.steps:
                break
        epoch += 1
    if rank == 0:
        with torch.no_grad():
            inputs, targets = data.tensors
            loss = torch.nn.functional.mse_loss(model.module(inputs), targets)
        print(f"eval_loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
