"""What users' code and docs import stays importable under its old name."""

from __future__ import annotations

import importlib

import pytest

NAMES = {
    "optimus_workers.task": ("OptimizerSpec", "TrainingTask"),
    "optimus_workers.errors": ("TaskError",),
    "optimus_workers.fine_tuning": ("fine_tuned", "freeze_all_but", "load_weights"),
    "optimus_workers.parameter_groups": ("named_groups",),
    "optimus_workers.profiling": ("describe",),
    "optimus_workers.data.augmentation": ("Crop", "Cutout", "Flip", "augmented"),
    "optimus_workers.data.shards": ("ShardedExamples", "read_lines"),
}


@pytest.mark.parametrize("module", NAMES)
def test_public_names_are_where_users_import_them_from(module: str) -> None:
    found = importlib.import_module(module)
    assert all(hasattr(found, name) for name in NAMES[module])
