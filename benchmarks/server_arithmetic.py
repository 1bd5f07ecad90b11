"""What a parameter server computes on a chunk of 1 MiB, with numpy as it does and with torch beside it: one thread.

    python -m benchmarks.server_arithmetic

prints one JSON object: milliseconds per chunk, the best of several passes over 24 chunks, which no cache holds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from optimus_workers.allreduce.state import apply_update
from optimus_workers.server.shard import BLOCK_FLOATS
from optimus_workers.server.update import n_state_sections, write_update
from optimus_workers.wire.compression import Compression, decode
from optimus_workers.wire.data import as_bytes
from optimus_workers.wire.frames import CHUNK_FLOATS, Codec
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.values import UpdateRule
from optimus_workers.worker.compression import encode

N_CHUNKS = 24
RULES: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.01},
    "momentum": {"kind": "sgd", "momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
    "nesterov": {"kind": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adamw": {"kind": "adamw", "momentum": 0.0, "nesterov": False, "weight_decay": 0.01},
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Milliseconds per chunk of a server's arithmetic, numpy and torch.")
    parser.add_argument("--passes", type=int, default=9, help="the best one counts")
    passes = parser.parse_args().passes
    torch.set_num_threads(1)
    updates = {name: _update(UpdateRule(betas=(0.9, 0.99), eps=1e-8, **rule), passes) for name, rule in RULES.items()}
    reading = {kind.value: _reading(kind, passes) for kind in Compression if kind is not Compression.NONE}
    print(json.dumps({"milliseconds_per_chunk": {"update": updates, "reading": reading}}))


def _update(rule: UpdateRule, passes: int) -> dict[str, float]:
    """An update from one version into the other: torch copies first, for its kernels work in place."""
    generator = np.random.default_rng(1)
    old, new = ([_numbers(generator) for _ in range(1 + n_state_sections(rule))] for _ in range(2))
    gradient = _numbers(generator)

    def numpy_chunk(first: int) -> None:
        for start in range(first, first + CHUNK_FLOATS, BLOCK_FLOATS):
            part = slice(start, start + BLOCK_FLOATS)
            write_update(rule, 0.1, 5, [each[part] for each in old], gradient[part], [each[part] for each in new])

    sources, targets = ([torch.from_numpy(each) for each in sections] for sections in (old, new))
    told = torch.from_numpy(gradient)

    def torch_chunk(first: int) -> None:
        part = slice(first, first + CHUNK_FLOATS)
        for source, target in zip(sources, targets, strict=True):
            target[part].copy_(source[part])
        parameters, *state = (target[part] for target in targets)
        apply_update(rule, 0.1, 5, parameters, told[part], state)

    return {"numpy": _best(numpy_chunk, passes), "torch": _best(torch_chunk, passes)}


def _reading(kind: Compression, passes: int) -> dict[str, float]:
    """Compressed chunks, read into a push; torch where it has the format itself."""
    values = _numbers(np.random.default_rng(2)) * np.float32(1e-3)
    target = np.zeros_like(values)
    starts = range(0, len(values), CHUNK_FLOATS)
    payloads = {
        first: encode(kind.codec, torch.from_numpy(values[first : first + CHUNK_FLOATS]), 0.01) for first in starts
    }

    def numpy_chunk(first: int) -> None:
        decode(kind.codec, as_bytes(payloads[first]), target[first : first + CHUNK_FLOATS])

    found = {"numpy": _best(numpy_chunk, passes)}
    halves = {Codec.FLOAT16: torch.float16, Codec.BFLOAT16: torch.bfloat16}.get(kind.codec)
    if halves is not None:
        place = torch.from_numpy(target)

        def torch_chunk(first: int) -> None:
            place[first : first + CHUNK_FLOATS].copy_(torch.frombuffer(payloads[first], dtype=halves))

        found["torch"] = _best(torch_chunk, passes)
    return found


def _numbers(generator: np.random.Generator) -> Floats:
    return np.abs(generator.standard_normal(N_CHUNKS * CHUNK_FLOATS, dtype=np.float32))


def _best(chunk: Callable[[int], None], passes: int) -> float:
    """Milliseconds per chunk."""
    seconds = []
    for _ in range(passes):
        started_at = time.perf_counter()
        for first in range(0, N_CHUNKS * CHUNK_FLOATS, CHUNK_FLOATS):
            chunk(first)
        seconds.append(time.perf_counter() - started_at)
    return round(1000 * min(seconds) / N_CHUNKS, 3)


if __name__ == "__main__":
    main()
