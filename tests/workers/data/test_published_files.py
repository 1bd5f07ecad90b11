"""CIFAR-10 and Fashion-MNIST as they are published, and what is done about files that are not."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.errors import TaskError
from optimus_workers.zoo import cifar10
from optimus_workers.zoo import fashion as fashion_mnist

N = 12


def cifar_rows(seed: int) -> tuple[np.ndarray, list[int]]:
    chance = np.random.default_rng(seed)
    return chance.integers(256, size=(N, 3072), dtype=np.uint8), [int(label) for label in chance.integers(10, size=N)]


PICKLER: Any = pickle._Pickler
"""The one in Python, whose methods can be replaced."""


def save_as_python_2_did(pickler: Any, value: bytes) -> None:
    """Byte strings as in the published files; Python 3 writes them otherwise."""
    is_short = len(value) < 256
    pickler.write(pickle.SHORT_BINSTRING + bytes([len(value)]) if is_short else struct.pack("<ci", b"T", len(value)))
    pickler.write(value)
    pickler.memoize(value)


def python_2_pickle(value: object) -> bytes:
    output = io.BytesIO()
    pickler = PICKLER(output, protocol=2)
    pickler.dispatch = {**PICKLER.dispatch, bytes: save_as_python_2_did}
    pickler.dump(value)
    return output.getvalue()


def write_cifar(folder: Path, *, binary: bool) -> None:
    folder.mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for seed, name in enumerate(names):
        pixels, labels = cifar_rows(seed)
        if binary:
            rows = np.column_stack([np.array(labels, dtype=np.uint8), pixels])
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            batch = {b"data": pixels, b"labels": labels, b"batch_label": b"x", b"filenames": [b"a.png"] * N}
            (folder / name).write_bytes(python_2_pickle(batch))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_cifar_is_read(tmp_path: Path, binary: bool, nested: bool) -> None:
    inner = "cifar-10-batches-bin" if binary else "cifar-10-batches-py"
    write_cifar(tmp_path / inner, binary=binary)
    images, labels = cifar10.training_examples(tmp_path if nested else tmp_path / inner)
    pixels, expected = cifar_rows(0)
    assert images.shape == (5 * N, 3, 32, 32)
    assert labels[:N].tolist() == expected
    red = (pixels[0, 0] / 255 - cifar10.MEAN[0]) / cifar10.DEVIATION[0]
    assert images[0, 0, 0, 0].item() == pytest.approx(red, rel=1e-5)
    assert cifar10.held_out_examples(tmp_path / inner)[1].tolist() == cifar_rows(5)[1]


def test_cifar_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="there is no directory"):
        cifar10.training_examples(tmp_path / "absent")
    write_cifar(tmp_path / "cifar-10-batches-py", binary=False)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(TaskError, match="CIFAR-10: data_batch_3 not found"):
        cifar10.training_examples(tmp_path)


class Payload:
    """What a hostile file would hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_hostile_batch_runs_nothing(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py", binary=False)
    proof = tmp_path / "proof"
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Payload(proof), protocol=2))
    with pytest.raises(TaskError, match=r"mkdir, which has no place"):
        cifar10.training_examples(tmp_path)
    assert not proof.exists()


def damaged(content: bytes) -> list[bytes]:
    other = python_2_pickle({b"data": np.zeros((2, 5), np.uint8), b"labels": [0, 0]})
    return [b"", content[: len(content) // 2], other]


@pytest.mark.parametrize("case", range(3))
def test_damaged_batches_are_named(tmp_path: Path, case: int) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder, binary=False)
    target = folder / "data_batch_2"
    target.write_bytes(damaged(target.read_bytes())[case])
    with pytest.raises(TaskError, match="data_batch_2"):
        cifar10.training_examples(tmp_path)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_fashion(folder: Path, *, packed: bool) -> np.ndarray:
    folder.mkdir(parents=True)
    chance = np.random.default_rng(1)
    pixels = chance.integers(256, size=(N, 28, 28), dtype=np.uint8)
    labels = chance.integers(10, size=N, dtype=np.uint8)
    for prefix in ("train", "t10k"):
        for name, array in ((f"{prefix}-images-idx3-ubyte", pixels), (f"{prefix}-labels-idx1-ubyte", labels)):
            if packed:
                with gzip.open(folder / f"{name}.gz", "wb") as file:
                    file.write(idx(array))
            else:
                (folder / name).write_bytes(idx(array))
    return pixels


@pytest.mark.parametrize("packed", [False, True])
def test_fashion_is_read(tmp_path: Path, packed: bool) -> None:
    pixels = write_fashion(tmp_path / "FashionMNIST" / "raw", packed=packed)
    images, labels = fashion_mnist.training_examples(tmp_path)
    assert images.shape == (N, 1, 28, 28)
    assert labels.dtype == torch.int64
    expected = (pixels[3, 4, 5] / 255 - fashion_mnist.MEAN) / fashion_mnist.DEVIATION
    assert images[3, 0, 4, 5].item() == pytest.approx(expected, rel=1e-5)


def test_sizes_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 2**31, 2**10, 2**10))
    with pytest.raises(TaskError, match="damaged: sizes"):
        fashion_mnist.read_idx(path)


@given(content=st.binary(max_size=64))
def test_any_bytes_are_an_array_or_a_task_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.idx"
    path.write_bytes(content)
    try:
        array = fashion_mnist.read_idx(path)
    except TaskError:
        return
    assert idx(array) == content
