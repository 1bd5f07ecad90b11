"""The benchmark for GPUs runs on a CPU as well, with tiny images: real processes, plain PyTorch beside them."""

from __future__ import annotations

import json
import sys

import pytest
from benchmarks import gpu_training


def test_it_prints_one_object_with_jobs_beside_plain_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--device cpu --networks resnet-18 --batch 4 --side 16 --steps 3 --workers 1 --servers 1"
    monkeypatch.setattr(sys, "argv", ["gpu_training", *arguments.split()])
    monkeypatch.setattr(gpu_training, "WARM_UP_STEPS", 1)
    monkeypatch.setattr(gpu_training, "_in_own_process", gpu_training.plain_images_per_second)
    gpu_training.main()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    (job,) = row["jobs"]
    assert (job["workers"], job["servers"]) == (1, 1)
    assert job["images_per_second"] > 0
    assert set(row["plain_images_per_second"]) == {"plain", "plain_slots"}
    assert job["milliseconds"]["compute"] > 0
