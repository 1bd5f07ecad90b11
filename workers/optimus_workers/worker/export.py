"""The trained model as a file that any PyTorch program can load."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from optimus_workers.worker.flat import FlatModel

MODEL_NAME = "model.safetensors"


def export_model(flat: FlatModel, job_directory: Path) -> Path:
    """Write the model's `state_dict` with its parameters and buffers as they are. Raises `OSError`."""
    path = job_directory / MODEL_NAME
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    # Copies: the parameters are views of one vector, and the format wants each tensor to have its own memory.
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in flat.model.state_dict().items()}
    try:
        save_file(state, temporary)
    except SafetensorError as error:
        raise OSError(f"cannot write {path.name}: {error}") from error
    temporary.replace(path)
    return path
