"""The trained model as a file that any PyTorch program can load."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import save_model

from optimus_workers.worker.flat import FlatModel

MODEL_NAME = "model.safetensors"


def export_model(flat: FlatModel, job_directory: Path) -> Path:
    """Write the model's state (`safetensors.torch.load_model` reads it back)."""
    path = job_directory / MODEL_NAME
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    save_model(flat.model, str(temporary))
    temporary.replace(path)
    return path
