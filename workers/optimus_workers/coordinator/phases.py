"""The phases of a coordinator, and how long each thing may take."""

from __future__ import annotations

from enum import StrEnum

ARRIVAL_SECONDS = 1.5
"""Tasks that arrive within this time of each other come in together: one change instead of several."""
MAX_ARRIVAL_SECONDS = 5.0
"""Nobody who is ready waits longer than this for others to arrive."""
WORKER_START_SECONDS = 15.0
"""Servers start in half a second, workers have torch to import and the user's task to load. So long, servers that
arrive first wait for them, while training goes on as it is: one change instead of two."""
REGROUP_SECONDS = 15.0
"""How long a coordinator that took over waits for the servers of the last membership before it gives up the state that
they hold and restores the last checkpoint. Tasks dial again within a second, busy machines included."""
RETRY_SECONDS = 1.0
"""Between an attempt at a membership that failed for no visible reason and the next one; the same for checkpoints."""
MAX_ATTEMPTS = 30
"""Attempts in a row without a membership after which the job fails: something is wrong that does not go away."""
MAX_SAVE_ATTEMPTS = 5
"""After this many failures of the last checkpoint (disk full?) the job ends without it."""
DATA_LOST_SECONDS = 1.0
"""A broken data connection usually means that a task died, which its control connection tells at the same moment."""
UNWANTED_SECONDS = 5.0
"""A task that nobody wants may be of a wanted set that is still on its way here; after this it is not."""
STOPPING_SECONDS = 60.0
"""Told to pause or finish without tasks: how long replacements may take before the last checkpoint has to do."""
CLOSING_SECONDS = 10.0
"""How long tasks that were let go may take to hang up."""
LINGER_SECONDS = 3.0
"""How long a coordinator that found the job ended stays to let go the tasks that dial again."""


class Phase(StrEnum):
    """What the coordinator is waiting for."""

    GATHERING = "gathering"
    """Tasks to train with."""
    HALTING = "halting"
    """Every server to say what it holds."""
    RESTORING = "restoring"
    """The newest checkpoint to be found."""
    ASSUMING = "assuming"
    """Every server of the new membership to have its range."""
    JOINING = "joining"
    """Every worker of it to have the parameters."""
    TRAINING = "training"
    """Workers to do their steps."""
    SAVING = "saving"
    """A checkpoint: its snapshots, or all of it before something final."""
    EVALUATING = "evaluating"
    """One worker to evaluate the final parameters."""
    CLOSING = "closing"
    """The tasks to hang up."""
    OVER = "over"
