"""A training loop of one's own that may stop at any step and go on with another number of processes. Needs torch.

    with optimus_client.elastic(model, optimizer, loader, epochs=10) as run:
        for inputs, targets in run:
            loss = loss_of(run.model(inputs), targets)      # a mean over the examples
            run.backward(loss)
            run.step()

A step is one optimizer step on the global batch. The examples of a step are the same whatever the number of processes:
they are divided among them, and within a process into parts of at most the batch size that fits it, whose gradients
accumulate. Each example of an epoch is used once, over all stops and resizes.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from .agreement import Agreement, all_agree, rank, world_size
from .batch import accumulation_steps, batch_factor, global_batch_size, warmup_epochs, worker_batch_size
from .reporting import loaded, report, report_schedule, resumes, stopped

log = logging.getLogger("optimus_client")

FILE_NAME = "elastic.pt"
FOLDER_PREFIX = "elastic-"
"""Sharded states (FSDP) are in a folder per step; the file names the newest complete one."""


def elastic(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    scheduler: Any = None,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    scheduler_interval: str = "step",
    seed: int = 0,
    save_seconds: float = 300.0,
    directory: str | os.PathLike[str] | None = None,
    exit_when_stopped: bool = True,
) -> ElasticRun:
    """The training of `model` on the loader's data set, for `epochs` or `steps`, whichever is less.

    `loader`: its data set (with a length), sampler, `collate_fn`, workers and `drop_last` are used; its `batch_size`
    is the most that one process computes at once. The global batch is what the job asks for, else that of the first
    start: batch size times processes. `scheduler`: `run.step()` steps it after every optimizer step, or after every
    epoch (`scheduler_interval="epoch"`). `seed`: of the order of a sampler that shuffles. `save_seconds`: between two
    checkpoints; there is one before every stop, and at the end. `directory`: of the checkpoints; else the job's, else
    `checkpoints`. `exit_when_stopped`: a request to stop ends the process (exit code 0), so that what the script does
    after its training is not done too early; else the loop ends, and `run.is_stopped` says why.

    With weak scaling the global batch grows with the workers: a step counts as so many of `steps` and of `scheduler`,
    and the optimizer's learning rate is multiplied with that number.

    Raises `ValueError`: there is no end, or the data set has no length.
    """
    if epochs is None and steps is None:
        raise ValueError("say when the training ends: give epochs or steps")
    if scheduler_interval not in ("step", "epoch"):
        raise ValueError(f"scheduler_interval must be 'step' or 'epoch', not {scheduler_interval!r}")
    if not hasattr(loader.dataset, "__len__") or loader.sampler is None:
        raise ValueError("the data set must have a length: a stream cannot be divided anew")
    found = Path(directory or os.environ.get("OPTIMUS_CHECKPOINT_DIRECTORY") or "checkpoints")
    run = ElasticRun(model, optimizer, loader, scheduler, found)
    run._epochs, run._steps, run._seed = epochs, steps, seed
    run._steps_scheduler = scheduler is not None and scheduler_interval == "step"
    run._save_seconds, run._exits = save_seconds, exit_when_stopped
    return run


@dataclass(frozen=True)
class _Part:
    """What this process computes at once: a part of its part of a step."""

    indices: list[int]
    weight: float
    """Its share in the mean over the whole step, by its examples."""
    is_last: bool
    """Of the step: gradients are summed over processes with it."""
    end: int
    """Examples of the epoch that are used when the step is done."""


@dataclass(frozen=True)
class _Rate:
    """The factor of the learning rate with weak scaling, as jobs with a task have it: it grows with the batch over a
    warm-up, and falls with it at once (Goyal et al. 2017)."""

    target: float = 1.0
    begin: float = 1.0
    """The factor when `since` examples were used, from where it grows to the target over `length` examples."""
    since: int = 0
    length: float = 0.0

    def at(self, n_seen: int) -> float:
        """The factor after so many examples."""
        done = n_seen - self.since
        return self.target if done >= self.length else self.begin + (self.target - self.begin) * done / self.length

    def changed(self, target: float, n_seen: int, length: float) -> _Rate:
        """From `n_seen` examples on towards another target."""
        present = self.at(n_seen)
        return _Rate(target, present, n_seen, length) if target > present else _Rate(target)


class ElasticRun:
    """What `elastic` returns."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        scheduler: Any,
        directory: Path,
    ) -> None:
        self.model = model
        """What the loop calls: from the start of the `with` block on in DistributedDataParallel, if there are several
        processes and it is not distributed yet. After it, the plain model."""
        self.step_number = 0
        """Optimizer steps completed, over all starts."""
        self.epoch = 0
        """Epochs completed."""
        self.is_stopped = False
        """The loop has ended because the process should stop."""
        self._plain_model, self._optimizer, self._loader = model, optimizer, loader
        self._scheduler, self._directory = scheduler, directory
        self._epochs: int | None = None
        self._steps: int | None = None
        self._seed, self._save_seconds = 0, 0.0
        self._exits, self._steps_scheduler = True, False
        self._position = 0
        """Examples of the present epoch that are used."""
        self._batch = self._limit = 1
        """Of a step; of one process at once."""
        self._weight = 1
        """Steps of one worker's batch that a step counts as (weak scaling)."""
        self._counted = 0
        """All steps so far, counted so."""
        self._rate = _Rate()
        self._part: _Part | None = None
        self._was_stepped = False
        self._used_rate: Any = None
        """Of the step at hand."""
        self._loss: Any = None
        self._saved_at, self._saved_step = time.monotonic(), -1
        self._agreement = Agreement()
        self._made_group = False
        self._is_plain = False
        """The loop steps the optimizer by itself, so that a step cannot be divided into parts."""

    # --- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> ElasticRun:
        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not dist.is_initialized():
            device = self._device
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group()  # gloo for CPUs and nccl for GPUs, where there are some
            self._made_group = True
        self._check_scheduler()
        self._limit = worker_batch_size(self._loader.batch_size or 1)
        given, factor = global_batch_size(), batch_factor()
        if given is None and factor is not None:
            given = self._limit * world_size()
        self._batch = given or self._limit * world_size()
        self._load()
        self._batch = given or self._batch
        if factor is not None:
            self._weight = factor
            self._rate = self._rate.changed(factor, self._n_seen, warmup_epochs() * self._n_examples)
            self._scale_learning_rate()
        if world_size() > 1 and not _is_distributed(self.model):
            device = self._device
            self.model = DistributedDataParallel(self.model, device_ids=[device] if device.type == "cuda" else None)
        resumes()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and not self.is_stopped and self.step_number != self._saved_step:
            self._save(must=True)
        if self.model is not self._plain_model:
            # Before the group goes: what sums gradients would end it while it holds the interpreter's lock, for which
            # a thread of gloo may wait.
            self.model = self._plain_model
            gc.collect()
        if self._made_group and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def sync_gradients(self) -> bool:
        """Whether `step()` steps the optimizer now: the place to clip gradients."""
        return self._part is None or self._part.is_last

    @property
    def counts(self) -> bool:
        """Whether the present batch counts in the step: one that stands for no example has weight 0."""
        return self._part is None or self._part.weight > 0

    @property
    def global_batch_size(self) -> int:
        """Examples of one step over all processes."""
        return self._batch

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        limit = sys.maxsize
        if self._steps is not None:
            limit = self.step_number + max(0, ceil((self._steps - self._counted) / self._weight))
        if self._epochs is None:
            return limit
        to_come = self._steps_in(self._n_examples - self._position)
        to_come += max(0, self._epochs - self.epoch - 1) * self._steps_in(self._n_examples)
        return min(limit, self.step_number + (to_come if self.epoch < self._epochs else 0))

    # --- the loop ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        total = self.total_steps
        if self._steps_in(self._n_examples) == 0:
            raise ValueError(f"{self._n_examples} examples make no step of {self._batch}")
        if self._is_plain and accumulation_steps() > 1:
            self._refuse_to_divide()  # the job says that a process cannot compute more at once
        report(total_steps=total, total_epochs=self._epochs)
        self._report_schedule(total)
        while self.step_number < total:
            for part, batch in self._rest_of_epoch():
                self._part, self._was_stepped = part, False
                self._used_rate = self._optimizer.param_groups[0].get("lr")  # before the scheduler changes it
                yield batch
                self._end_part(part)
                if part.is_last and self._must_stop():
                    return
                if self.step_number >= total:
                    break
            if self._steps_in(self._n_examples - self._position) == 0:
                self.epoch, self._position = self.epoch + 1, 0
                if self._scheduler is not None and not self._steps_scheduler:
                    self._scheduler.step()

    def backward(self, loss: torch.Tensor) -> None:
        """`loss.backward()`, weighed so that the sum over parts and processes is the mean over the step's examples."""
        part = self._the_part()
        scaled = loss * (part.weight * world_size())  # DistributedDataParallel and FSDP take the mean over processes
        with self._sync(part.is_last):
            scaled.backward()  # type: ignore[no-untyped-call, unused-ignore]
        self.report(loss)

    def step(self) -> None:
        """Step the optimizer and set gradients to zero, if this part ends the step; else nothing."""
        part = self._the_part()
        self._was_stepped = True
        if part.is_last:
            self._optimizer.step()
            if self._steps_scheduler:
                for _ in range(self._weight):
                    self._scheduler.step()
            self._optimizer.zero_grad()

    def report(self, loss: Any) -> None:
        """The loss of this part, for loops that do not call `backward`."""
        part = self._the_part()
        share = loss.detach() * part.weight if isinstance(loss, torch.Tensor) else loss * part.weight
        self._loss = (
            (share, part.weight) if self._loss is None else (self._loss[0] + share, self._loss[1] + part.weight)
        )

    def _the_part(self) -> _Part:
        if self._part is None:
            raise RuntimeError("this is called inside `for batch in run`")
        return self._part

    def _sync(self, is_last: bool) -> Any:
        """Processes exchange gradients once per step."""
        if is_last or world_size() == 1:
            return nullcontext()
        model: Any = self.model
        # FSDP2 has none: its gradients stay sharded, and are exchanged with each part.
        return model.no_sync() if hasattr(model, "no_sync") else nullcontext()

    def _end_part(self, part: _Part) -> None:
        if not part.is_last:
            if not self._was_stepped:
                self._refuse_to_divide()
            return
        self._is_plain = not self._was_stepped
        rate = self._used_rate
        if rate is not None and self._weight > 1:
            rate = rate * self._rate.at(self._n_seen)
        self.step_number += 1
        self._counted += self._weight
        self._position = part.end
        loss = None
        if self._loss is not None and self._loss[1] > 0:
            loss = self._loss[0] / self._loss[1]
        self._loss = None
        report(
            step=self.step_number,
            loss=loss,
            examples=self._batch,
            epoch=self.epoch + self._position / self._n_examples,
            learning_rate=rate,
        )

    def _report_schedule(self, total: int) -> None:
        """The learning rates to come. With weak scaling what the batch multiplies is not in them."""
        if self._scheduler is None:
            return
        epoch = {} if self._steps_scheduler else {"per_steps": self._steps_in(self._n_examples)}
        begun = 0 if self._steps_scheduler else self._position // self._batch
        calls = self._weight if self._steps_scheduler else 1
        report_schedule(self._scheduler, step=self.step_number, total_steps=total, calls=calls, begun=begun, **epoch)

    def _refuse_to_divide(self) -> None:
        raise RuntimeError(
            f"a step of {self._batch} examples is divided into parts of {self._limit} here: "
            "call run.backward(loss) and run.step(), which accumulate their gradients"
        )

    def _scale_learning_rate(self) -> None:
        """Multiply the learning rate while the optimizer steps: schedulers, which go on from it, see their own."""
        own: list[Any] = []

        def scale(*_: Any) -> None:
            factor = self._rate.at(self._n_seen)
            for group in self._optimizer.param_groups:
                own.append(group["lr"])
                group["lr"] = group["lr"] * factor

        def restore(*_: Any) -> None:
            for group, rate in zip(self._optimizer.param_groups, own):
                group["lr"] = rate
            own.clear()

        self._optimizer.register_step_pre_hook(scale)
        self._optimizer.register_step_post_hook(restore)

    def _must_stop(self) -> bool:
        """At a step boundary: save if it is time, save and stop if that is asked for."""
        is_due = rank() == 0 and time.monotonic() - self._saved_at >= self._save_seconds
        stops, saves = self._agreement.ask(self.step_number, save=is_due)
        began = time.monotonic()
        if stops or saves:
            self._save(must=stops)
        if not stops:
            return False
        self.is_stopped = True
        if rank() == 0:
            stopped(self.step_number, time.monotonic() - began)
        if self._exits:
            sys.exit(0)
        return True

    # --- the data ----------------------------------------------------------------------------------------------------

    @property
    def _n_seen(self) -> int:
        """Examples used so far, over all epochs."""
        return self.epoch * self._n_examples + self._position

    @property
    def _n_examples(self) -> int:
        """Of an epoch."""
        sampler = self._loader.sampler
        return len(sampler.dataset if isinstance(sampler, DistributedSampler) else sampler)  # type: ignore[arg-type]

    def _steps_in(self, n_examples: int) -> int:
        whole, rest = divmod(n_examples, self._batch)
        return whole + (rest > 0 and not self._loader.drop_last)

    def _rest_of_epoch(self) -> Iterator[tuple[_Part, Any]]:
        parts = self._parts()
        loader = self._loader
        workers: dict[str, Any] = {}
        if loader.num_workers > 0:
            workers = {"prefetch_factor": loader.prefetch_factor, "timeout": loader.timeout}
        data: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=[part.indices for part in parts],
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator().manual_seed(self._seed),  # the script's own random numbers stay as they are
            **workers,
        )
        return zip(parts, data)

    def _parts(self) -> list[_Part]:
        """What this process computes in the rest of the epoch."""
        order, world, me = self._order(), world_size(), rank()
        found = []
        for begin in range(self._position, len(order), self._batch):
            step = order[begin : begin + self._batch]
            if len(step) < self._batch and self._loader.drop_last:
                break
            # As many parts on every process: what is distributed exchanges something with each.
            n_parts = 1 if self._is_plain else ceil(ceil(len(step) / world) / self._limit)
            mine = step[me::world]
            for index in range(n_parts):
                examples = mine[index::n_parts]
                # A process for which there is no example takes part with one that counts nothing.
                found.append(
                    _Part(examples or step[:1], len(examples) / len(step), index == n_parts - 1, begin + len(step))
                )
        return found

    def _order(self) -> list[int]:
        """The examples of the present epoch in their order, which is the same on all processes and after a stop."""
        sampler, seed = self._loader.sampler, self._seed * 1_000_003 + self.epoch
        if isinstance(sampler, DistributedSampler):  # it would leave out what other processes take
            if not sampler.shuffle:
                return list(range(self._n_examples))
            generator = torch.Generator().manual_seed(sampler.seed + self.epoch)
            return list(map(int, torch.randperm(self._n_examples, generator=generator)))
        own = getattr(sampler, "generator", None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if own is not None:
                own.manual_seed(seed)
            return list(map(int, sampler))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return next((each.device for each in self._plain_model.parameters()), torch.device("cpu"))

    def _check_scheduler(self) -> None:
        """A state that could not be read again is an error before the training, not after it."""
        if self._scheduler is not None:
            file = io.BytesIO()
            torch.save(self._scheduler.state_dict(), file)
            file.seek(0)
            torch.load(file, weights_only=True)

    def _save(self, *, must: bool) -> None:
        """On all processes. Raises on all of them if it `must` succeed and does not."""
        failure: Exception | None = None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if _is_sharded(self._plain_model):
                self._save_sharded()
            elif rank() == 0:
                model = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
                self._write({"model": model.state_dict(), "optimizer": self._optimizer.state_dict()})
        except (OSError, RuntimeError) as error:  # a full disk
            failure = error
        self._saved_at = time.monotonic()
        if all_agree(failure is None):
            self._saved_step = self.step_number
            return
        if must:
            raise RuntimeError(f"the state cannot be saved in {self._directory}") from failure
        log.warning("the state cannot be saved in %s: %s", self._directory, failure)

    def _write(self, state: dict[str, Any]) -> None:
        """Replace the file: it is always whole, whenever the process is killed."""
        progress: dict[str, Any] = {
            "step": self.step_number,
            "epoch": self.epoch,
            "position": self._position,
            "batch": self._batch,
            "counted": self._counted,
            "rate": self._rate.at(self._n_seen),
        }
        progress["is_plain"] = self._is_plain
        scheduler = None if self._scheduler is None else self._scheduler.state_dict()
        scratch = self._directory / f"{FILE_NAME}.new"
        with scratch.open("wb") as file:
            torch.save({**state, "progress": progress, "scheduler": scheduler}, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._directory / FILE_NAME)

    def _load(self) -> None:
        path, began = self._directory / FILE_NAME, time.monotonic()
        if not path.exists():
            return
        state = torch.load(path, map_location="cpu", weights_only=True)
        if _is_sharded(self._plain_model):
            self._load_sharded(state["folder"])
        else:
            model = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
            model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        progress = state["progress"]
        self.step_number, self.epoch = progress["step"], progress["epoch"]
        self._position, self._batch = progress["position"], progress["batch"]
        self._is_plain = progress["is_plain"]
        self._counted = progress.get("counted", self.step_number)
        self._rate = _Rate(progress.get("rate", 1.0))
        if self._steps_in(self._n_examples - self._position) == 0:  # saved between two epochs
            self.epoch, self._position = self.epoch + 1, 0
            if self._scheduler is not None and not self._steps_scheduler:
                self._scheduler.step()
        self._saved_step = self.step_number
        loaded(time.monotonic() - began)

    def _save_sharded(self) -> None:
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.checkpoint.state_dict_saver import save

        model, optimizer = get_state_dict(self._plain_model, self._optimizer)
        folder = self._directory / f"{FOLDER_PREFIX}{self.step_number}"
        save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        if rank() == 0:
            self._write({"folder": folder.name})
            for old in self._directory.glob(f"{FOLDER_PREFIX}*"):
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)

    def _load_sharded(self, folder: str) -> None:
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        model, optimizer = get_state_dict(self._plain_model, self._optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        load(state, checkpoint_id=self._directory / folder)
        set_state_dict(
            self._plain_model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def _is_sharded(model: torch.nn.Module) -> bool:
    """Whether each process has a part of the parameters (FSDP, either version)."""
    names = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    return bool(names & {"FullyShardedDataParallel", "FSDPModule"})


def _is_distributed(model: torch.nn.Module) -> bool:
    return isinstance(model, DistributedDataParallel) or _is_sharded(model)
