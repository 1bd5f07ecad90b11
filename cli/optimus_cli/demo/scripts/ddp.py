"""Trains a small classifier with DistributedDataParallel, as PyTorch's tutorial on torchrun does: a snapshot every few
steps, from which a later start goes on. It knows nothing of Optimus.

    torchrun ddp.py --steps 2400 --snapshot snapshot.pt
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES, PIXELS = 10, 784


def pictures(n_examples: int) -> TensorDataset:
    """Ten noisy prototypes: like handwritten digits, without a download."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(CLASSES, PIXELS, generator=generator)
    labels = torch.randint(0, CLASSES, (n_examples,), generator=generator)
    return TensorDataset(prototypes[labels] + 6 * torch.randn(n_examples, PIXELS, generator=generator), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=256, help="examples of one step over all processes")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--snapshot-every", type=int, default=20)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(PIXELS, options.width), torch.nn.ReLU(), torch.nn.Linear(options.width, CLASSES)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    step = 0
    if os.path.exists(options.snapshot):
        snapshot = torch.load(options.snapshot)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        step = snapshot["step"]

    data = pictures(20_000)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=1)
    loader = DataLoader(data, batch_size=max(1, options.batch // world), sampler=sampler)
    while step < options.steps:
        sampler.set_epoch(step // len(loader))
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step}/{options.steps} loss {loss.item():.4f}")
                if step % options.snapshot_every == 0 or step == options.steps:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, options.snapshot + ".new")
                    os.replace(options.snapshot + ".new", options.snapshot)
            if step == options.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
