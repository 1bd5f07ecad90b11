// What a job does now, as its row, the counts above the rows and the headline tell it.
import type { JobLine } from "./api";

/** As the column of states has it: `waiting` of those queued, `paused` by their owners or by rounds. */
export type Group = "all" | "waiting" | "starting" | "training" | "paused" | "ended";
type Lived = Pick<JobLine, "state" | "reason" | "wanted_workers" | "workers" | "finished_at">;

export function groupOf(job: Lived): Group {
  if (job.finished_at) return "ended";
  if (job.wanted_workers + job.workers > 0) return stateWords(job) === "starting" ? "starting" : "training";
  return job.state === "paused" || job.reason === "PausedByOwner" ? "paused" : "waiting";
}

/** Whether it waits for tasks, and not for its owner. */
export function waitsForTasks(job: Lived): boolean {
  return ["waiting", "paused"].includes(groupOf(job)) && job.reason !== "PausedByOwner";
}

/** Whether its owner cancelled it, and its tasks are still being stopped. */
export function isBeingCancelled(job: Pick<JobLine, "reason" | "finished_at">): boolean {
  return !job.finished_at && job.reason === "Cancelling";
}

/** Whether it is among the jobs of a state, as the service lists them: starting ones are queued or paused as well. */
export function isOfState(job: Lived, state: string): boolean {
  return job.state === state || (state === "starting" && stateWords(job) === state);
}

/** What the column of states says. */
export function stateWords(job: Lived): string {
  if (job.state !== "queued" && job.state !== "paused") return job.state;
  if (job.wanted_workers > 0 && !isBeingCancelled(job)) return "starting";
  return job.state === "paused" || job.reason === "PausedByOwner" ? "paused" : job.state;
}
