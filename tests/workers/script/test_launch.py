"""What a worker starts for a command, and what each process is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.command import Launch, UnknownOption, launch
from optimus_workers.script.launch import Place, batch_variables, distributed_variables, python_environment


@pytest.mark.parametrize(
    ("command", "gpus", "argv", "n_processes"),
    [
        ("torchrun train.py --lr 1", 0, "python -u train.py --lr 1", 1),
        ("torchrun --nproc-per-node=4 train.py", 0, "python -u train.py", 4),
        ("torchrun --nproc_per_node gpu --nnodes 2 train.py", 8, "python -u train.py", 8),
        ("torchrun --standalone --max-restarts 3 -m pkg.train -x", 2, "python -u -m pkg.train -x", 2),
        ("torchrun --no-python ./train.sh a", 1, "./train.sh a", 1),
        ("/opt/venv/bin/torchrun --rdzv-backend c10d --rdzv-endpoint a:1 t.py", 0, "python -u t.py", 1),
        ("python3 -m torch.distributed.run --nproc-per-node 2 t.py", 0, "python3 -u t.py", 2),
        ("deepspeed --num_gpus 2 t.py --deepspeed c.json", 4, "python -u t.py --deepspeed c.json", 2),
        ("python train.py", 4, "python train.py", 1),
        ("bash train.sh", 0, "bash train.sh", 1),
        (
            "accelerate launch --num_processes 4 --multi_gpu --mixed_precision bf16 t.py --x 1",
            2,
            "accelerate launch --num_processes=1 --num_machines=1 --mixed_precision bf16 t.py --x 1",
            2,
        ),
    ],
)
def test_the_agent_starts_what_a_launcher_would(command: str, gpus: int, argv: str, n_processes: int) -> None:
    found = launch(command.split(), gpus=gpus)
    assert found.argv == tuple(argv.split())
    assert found.n_processes == n_processes


def test_a_plain_command_is_distributed_if_the_job_may_have_several_workers() -> None:
    assert not launch(["python", "t.py"], gpus=2).is_distributed
    assert launch(["python", "t.py"], gpus=2, workers=4) == Launch(("python", "t.py"), 2, is_distributed=True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("torchrun --nproc-per-nod 2 t.py", "torchrun option --nproc-per-nod is not known"),
        ("torchrun --nproc-per-node many t.py", "'many' is no number of processes"),
        ("torchrun --nnodes", "has no value"),
        ("torchrun --standalone", "is given no script"),
        ("torchrun", "is given no script"),
    ],
)
def test_an_option_that_is_not_known_is_named(command: str, said: str) -> None:
    with pytest.raises(UnknownOption, match=said):
        launch(command.split())


@given(
    n_workers=st.integers(1, 16),
    n_processes=st.integers(1, 8),
    batch=st.one_of(st.none(), st.integers(1, 4096)),
    at_once=st.one_of(st.none(), st.integers(1, 512)),
)
def test_ranks_are_each_number_once_and_the_batch_is_divided(
    n_workers: int, n_processes: int, batch: int | None, at_once: int | None
) -> None:
    started = Launch(("python", "t.py"), n_processes, is_distributed=True)
    found = [
        distributed_variables(started, Place(rank, n_workers, ("10.0.0.1", 29500), restarts=2), local, "job-1")
        for rank in range(n_workers)
        for local in range(n_processes)
    ]
    world = n_workers * n_processes
    assert [int(each["RANK"]) for each in found] == list(range(world))
    assert {each["WORLD_SIZE"] for each in found} == {str(world)}
    assert {int(each["LOCAL_RANK"]) for each in found} == set(range(n_processes))
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found} == {("10.0.0.1", "29500")}
    assert {each["TORCHELASTIC_RESTART_COUNT"] for each in found} == {"2"}
    told = [batch_variables(batch, world, rank, at_once=at_once) for rank in range(world)]
    if batch is None:
        assert told == [{}] * world
        return
    parts = [int(each.pop("OPTIMUS_BATCH_PART")) for each in told]
    assert sum(parts) == batch
    assert max(parts) - min(parts) <= 1
    assert told == told[:1] * world, "all processes take the same steps"
    size, steps = int(told[0]["OPTIMUS_WORKER_BATCH_SIZE"]), int(told[0]["OPTIMUS_ACCUMULATION_STEPS"])
    assert size <= (at_once or batch)
    assert -(-max(parts) // size) == steps, "no accumulation step is empty"
    assert batch <= world * size * steps < batch + world * (steps + 1)


@pytest.mark.parametrize(
    ("batch", "world", "at_once", "division"),
    [
        (48, 1, None, (48, 1)),
        (48, 3, 8, (8, 2)),
        (48, 2, 10, (8, 3)),
        (48, 2, 5, (4, 6)),  # five accumulation steps would be uneven
        (62, 2, 10, (8, 4)),  # 31 examples are a prime number: as even as it gets
        (50, 3, None, (17, 1)),
        (2, 4, None, (1, 1)),
    ],
)
def test_the_batch_is_divided_equally_where_that_is_possible(
    batch: int, world: int, at_once: int | None, division: tuple[int, int]
) -> None:
    told = batch_variables(batch, world, at_once=at_once)
    assert (int(told["OPTIMUS_WORKER_BATCH_SIZE"]), int(told["OPTIMUS_ACCUMULATION_STEPS"])) == division


def test_a_command_sees_the_environment_of_its_interpreter() -> None:
    found = python_environment({"PATH": "/usr/bin", "PYTHONHOME": "/x", "A": "1"}, "/home/me/venv/bin/python")
    assert found == {"PATH": "/home/me/venv/bin:/usr/bin", "VIRTUAL_ENV": "/home/me/venv", "A": "1"}
