"""A training loop that may be stopped at any step and go on with another number of processes. Needs torch.

    with optimus_client.elastic(model, optimizer, loader, epochs=10) as run:
        for inputs, targets in run:
            loss = loss_of(run.model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss)

Every pass of the loop is one optimizer step. The examples of a step are the same for any number of processes: the
global batch is divided among them, and each example of an epoch is seen once, whatever the number was meanwhile.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from optimus_client.agreement import StopAgreement
from optimus_client.reporting import report, resumes, stopped

FILE_NAME = "elastic.pt"
FOLDER_NAME = "elastic"
"""Of sharded states (FSDP): one folder per step, and a file that names the newest complete one."""


def elastic(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: "DataLoader[Any]",
    *,
    epochs: Optional[int] = None,
    steps: Optional[int] = None,
    scheduler: Any = None,
    seed: int = 0,
    save_seconds: float = 300.0,
    directory: "Optional[str | os.PathLike[str]]" = None,
) -> "ElasticRun":
    """The loop over `loader`'s data set for so many `epochs` or `steps`, whichever is less.

    Args:
        loader: its data set, `collate_fn`, workers and `drop_last` are used. Its `batch_size` is that of one process at
            the first start, unless the job names its global batch.
        scheduler: anything with `state_dict` and `load_state_dict` that goes with the optimizer.
        seed: of the order of the examples, if the loader shuffles.
        save_seconds: a checkpoint is written after so many seconds, besides before every stop.
        directory: where; default: the job's, or `checkpoints`.

    Raises:
        ValueError: neither epochs nor steps are given, or the data set has no length.
    """
    if epochs is None and steps is None:
        raise ValueError("say when the training ends: give epochs or steps")
    return ElasticRun(model, optimizer, loader, epochs, steps, scheduler, seed, save_seconds, directory)


class ElasticRun:
    """See `elastic`. `model` is what the loop calls: wrapped in DistributedDataParallel if there are several processes
    and it is not distributed yet."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: "DataLoader[Any]",
        epochs: Optional[int],
        steps: Optional[int],
        scheduler: Any,
        seed: int,
        save_seconds: float,
        directory: "Optional[str | os.PathLike[str]]",
    ) -> None:
        self.model = model
        self.step = 0
        """Optimizer steps completed."""
        self.epoch = 0
        """Epochs completed."""
        self._optimizer, self._scheduler, self._loader = optimizer, scheduler, loader
        self._epochs, self._steps, self._seed = epochs, steps, seed
        self._save_seconds = save_seconds
        found = directory or os.environ.get("OPTIMUS_CHECKPOINT_DIRECTORY") or "checkpoints"
        self._directory = Path(found)
        self._in_epoch = 0
        """Steps of the present epoch that are completed."""
        self._batch = 0
        self._saved_at = time.monotonic()
        self._saved_step = -1
        self._agreement = StopAgreement()
        self._loss: Any = None
        self._made_group = False

    # --- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> "ElasticRun":
        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            self._made_group = True
        self._batch = int(os.environ.get("OPTIMUS_GLOBAL_BATCH_SIZE") or 0)
        self._batch = self._batch or (self._loader.batch_size or 1) * self._world
        self._load()
        self._model = self.model
        if self._world > 1 and not _is_distributed(self.model):
            device = next(self.model.parameters()).device
            ids = [device.index] if device.type == "cuda" else None
            self.model = DistributedDataParallel(self.model, device_ids=ids)
        resumes()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and self.step != self._saved_step:
            self._save()
        if self._made_group and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _world(self) -> int:
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def _rank(self) -> int:
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the data set."""
        n_examples = len(self._loader.dataset)  # type: ignore[arg-type]
        whole, rest = divmod(n_examples, self._batch)
        # What is left must give every process an example.
        return max(1, whole + (rest >= self._world and not self._loader.drop_last))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        limits = [self._steps] if self._steps is not None else []
        if self._epochs is not None:
            limits.append(self._epochs * self.steps_per_epoch)
        return min(limits)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> "Iterator[Any]":
        total = self.total_steps
        report(total_steps=total, total_epochs=total / self.steps_per_epoch, step=self.step or None)
        while self.step < total:
            for batch in self._rest_of_epoch():
                yield batch
                self.step += 1
                self._in_epoch += 1
                self._tell()
                self._at_boundary()
                if self.step >= total:
                    return
            self.epoch, self._in_epoch = self.epoch + 1, 0

    def report(self, loss: Any) -> None:
        """The loss of the present step, for the next report."""
        self._loss = loss

    def _tell(self) -> None:
        if self._rank == 0:
            loss, self._loss = self._loss, None
            rate = self._optimizer.param_groups[0].get("lr")
            epoch = self.epoch + self._in_epoch / self.steps_per_epoch
            report(step=self.step, loss=loss, examples=self._batch, epoch=epoch, learning_rate=rate)

    def _at_boundary(self) -> None:
        """Between two steps: save and stop if that was asked for, save if it is time."""
        if self._agreement.should_stop(self.step):
            self._save()
            if self._rank == 0:
                stopped(self.step)
            if dist.is_available() and dist.is_initialized():
                dist.barrier()
                dist.destroy_process_group()
            sys.exit(0)
        if self._save_is_due():
            self._save()

    def _save_is_due(self) -> bool:
        due = time.monotonic() >= self._saved_at + self._save_seconds
        if self._world == 1:
            return due
        if self.step % 10:
            return False
        said = torch.tensor([float(due)], device=_group_device())
        dist.broadcast(said, 0)
        return bool(said.item())

    def _rest_of_epoch(self) -> "DataLoader[Any]":
        loader = self._loader
        batches = _Batches(self)
        return DataLoader(
            loader.dataset,
            batch_sampler=batches,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
        )

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _progress(self) -> "dict[str, Any]":
        found = {"step": self.step, "epoch": self.epoch, "in_epoch": self._in_epoch, "batch": self._batch}
        if self._scheduler is not None:
            found["scheduler"] = self._scheduler.state_dict()
        return found

    def _take(self, progress: "dict[str, Any]") -> None:
        self.step, self.epoch = progress["step"], progress["epoch"]
        # The examples of the present epoch that were seen, with the batch of then.
        self._batch = progress["batch"]
        self._in_epoch = progress["in_epoch"]
        if self._scheduler is not None and "scheduler" in progress:
            self._scheduler.load_state_dict(progress["scheduler"])
        self._saved_step = self.step

    def _save(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if _is_sharded(self._model):
            self._save_sharded()
        elif self._rank == 0:
            model = self._model.module if isinstance(self._model, DistributedDataParallel) else self._model
            state = {
                "model": model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "progress": self._progress(),
            }
            scratch = self._directory / (FILE_NAME + ".new")
            torch.save(state, scratch)
            _to_disk(scratch)
            scratch.replace(self._directory / FILE_NAME)
        if self._world > 1:
            dist.barrier()
        self._saved_at, self._saved_step = time.monotonic(), self.step

    def _load(self) -> None:
        self._model = self.model
        if _is_sharded(self.model):
            self._load_sharded()
            return
        path = self._directory / FILE_NAME
        if not path.exists():
            return
        device = next(self.model.parameters()).device
        state = torch.load(path, map_location=device, weights_only=True)
        model = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._take(state["progress"])

    def _save_sharded(self) -> None:
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.checkpoint.state_dict_saver import save

        model, optimizer = get_state_dict(self._model, self._optimizer)
        folder = self._directory / f"{FOLDER_NAME}-{self.step}"
        save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        if self._rank == 0:
            scratch = self._directory / (FILE_NAME + ".new")
            torch.save({"folder": folder.name, "progress": self._progress()}, scratch)
            _to_disk(scratch)
            scratch.replace(self._directory / FILE_NAME)
            for old in self._directory.glob(f"{FOLDER_NAME}-*"):
                if old.name != folder.name:
                    _remove(old)

    def _load_sharded(self) -> None:
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        path = self._directory / FILE_NAME
        if not path.exists():
            return
        head = torch.load(path, map_location="cpu", weights_only=True)
        model, optimizer = get_state_dict(self._model, self._optimizer)
        state: "dict[str, Any]" = {"model": model, "optimizer": optimizer}
        load(state, checkpoint_id=self._directory / head["folder"])
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self._take(head["progress"])


class _Batches:
    """The examples that this process takes in each step that is left of the present epoch."""

    def __init__(self, run: ElasticRun) -> None:
        self._run = run

    def __iter__(self) -> "Iterator[list[int]]":
        run = self._run
        n_examples = len(run._loader.dataset)  # type: ignore[arg-type]
        order = torch.arange(n_examples)
        if _shuffles(run._loader):
            generator = torch.Generator().manual_seed(run._seed * 1_000_003 + run.epoch)
            order = torch.randperm(n_examples, generator=generator)
        for step in range(run._in_epoch, run.steps_per_epoch):
            examples = order[step * run._batch : (step + 1) * run._batch]
            yield examples[run._rank :: run._world].tolist()

    def __len__(self) -> int:
        return self._run.steps_per_epoch - self._run._in_epoch


def _shuffles(loader: "DataLoader[Any]") -> bool:
    return not isinstance(loader.sampler, torch.utils.data.SequentialSampler)


def _is_sharded(model: torch.nn.Module) -> bool:
    """Whether each process has a part of the parameters (FSDP)."""
    names = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    return bool(names & {"FullyShardedDataParallel", "FSDPModule"})


def _is_distributed(model: torch.nn.Module) -> bool:
    return isinstance(model, DistributedDataParallel) or _is_sharded(model)


def _group_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
