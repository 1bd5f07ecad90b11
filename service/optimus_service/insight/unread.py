"""What its owner is told of a script in whose output no step is recognised. Pure."""

from __future__ import annotations

from optimus_scheduler.model import JobState
from optimus_service.store.records import JobRecord

CHECKPOINTS = "Checkpoints"
"""The event of a job whose checkpoints cannot be written, or can be again."""
PRINTS_TOO_MUCH = "PrintsTooMuch"
"""The event of a script that prints more than is read."""
WORKER_SILENT = "WorkerSilent"
"""The event of a job of which a task does not answer its coordinator, or answers again."""
PRINTS_NOTHING = "(nothing so far)"
"""What workers report in place of a line of a script that is silent."""
NO_STEP = (
    "The command told no step: it printed nothing, or in no known form. --progress-pattern, or one line "
    "with optimus_client, shows its progress (docs/scripts.md)."
)
"""Of one that ended before such a line was reported."""


def unread_words(line: str, pattern: str | None, *, has_ended: bool = False) -> str:
    """What was looked for, what is there, and the one-line mend."""
    mend = "One line in the script, optimus_client.report(step=step, loss=loss),"
    if line == PRINTS_NOTHING:
        printed = "It printed nothing" if has_ended else "It has printed nothing so far"
        return f"{printed}, so that no step is known. {mend} shows its progress (docs/scripts.md)."
    far, prints = ("", "printed") if has_ended else (" so far", "prints")
    found = f"No step was recognised{far}; looked for lines such as `step 12/200 loss 0.4`. It {prints}: `{line}`."
    given, fits = ("", "") if pattern is None else (f" '{pattern}'", "; see that the groups fit")
    return f"{found} {mend} or --progress-pattern{given} shows its progress{fits} (docs/scripts.md)."


def on_unread(job: JobRecord) -> list[str]:
    """The same as a sentence, while it holds."""
    profile = job.profile or {}
    if job.step > 0:
        return []
    if not profile.get("unread_line"):
        return [NO_STEP] if job.state is JobState.SUCCEEDED and job.asked.command is not None else []
    return [unread_words(profile["unread_line"], profile.get("suggested_pattern"), has_ended=job.state.is_final)]
