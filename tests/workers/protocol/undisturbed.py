"""Runs a script without Optimus, once for each seed: `undisturbed.py MODULE SCRIPT N_SEEDS ARGUMENT...`.

`{seed}` in an argument stands for the seed. Each run is a fork of this process, which has imported the library.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from importlib import import_module
from pathlib import Path

from optimus_workers.script.processes import preloads
from optimus_workers.script.starter import preload, preload_optimizers
from optimus_workers.wire.ports import reserve_port


def run(script: str, arguments: list[str]) -> None:
    """Run the script as the only process of a training."""
    os.environ["MASTER_PORT"] = str(reserve_port("127.0.0.1"))
    sys.argv = [script, *arguments]
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - a fork ends here, whatever happened
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    module, script, n_seeds, *arguments = sys.argv[1:]
    # As where a job's processes are forked: what they all would import, and look through for garbage.
    gc.disable()
    import_module(module)
    for name, members in preloads(Path(script)):
        preload(name, list(members))
    preload_optimizers()
    gc.freeze()
    gc.enable()
    for seed in range(int(n_seeds)):
        child = os.fork()
        if child == 0:
            run(script, [argument.format(seed=seed) for argument in arguments])
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"the run with seed {seed} failed")


if __name__ == "__main__":
    main()
