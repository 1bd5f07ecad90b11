"""Trains a small network with JAX on all processes, as its documentation of `jax.distributed` teaches; saved steps are
gone on from. It knows nothing of Optimus.

    torchrun jax_loop.py --directory out
"""

import argparse
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--hold", help="a file with the step after which to wait; FILE.at says where it waits")
    options = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, num_processes=world, process_id=rank)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    def loss_of(weights, inputs, targets):
        return jnp.mean((inputs @ weights - targets) ** 2)

    @jax.jit
    def update(weights, inputs, targets):
        loss, gradient = jax.value_and_grad(loss_of)(weights, inputs, targets)
        return weights - 0.05 * gradient, loss

    truth = np.random.default_rng(7).normal(size=(16, 1)).astype(np.float32)
    weights, step, saved = jnp.zeros((16, 1)), 0, os.path.join(options.directory, "weights.npz")
    if os.path.exists(saved):
        with np.load(saved) as found:
            weights, step = jnp.asarray(found["weights"]), int(found["step"])
    generator = np.random.default_rng([options.seed, rank])
    while step < options.steps:
        local = generator.normal(size=(64 // world, 16)).astype(np.float32)
        inputs = jax.make_array_from_process_local_data(sharded, local)
        targets = jax.make_array_from_process_local_data(sharded, local @ truth)
        weights, loss = update(weights, inputs, targets)
        step += 1
        time.sleep(options.step_seconds)
        while options.hold and step > int(Path(options.hold).read_text()):
            Path(options.hold + ".at").write_text(str(step))
            time.sleep(0.05)
        if rank == 0:
            print(f"step {step}/{options.steps} loss {float(loss):.4f}", flush=True)
            if step % 10 == 0:
                os.makedirs(options.directory, exist_ok=True)
                np.savez(saved + ".new.npz", weights=np.asarray(weights), step=step)
                os.replace(saved + ".new.npz", saved)
    if rank == 0:
        inputs = np.random.default_rng(8).normal(size=(1024, 16)).astype(np.float32)
        print(f"eval_loss {np.mean((inputs @ (np.asarray(weights) - truth)) ** 2):.6g}")


if __name__ == "__main__":
    main()
