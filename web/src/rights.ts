// What the caller may do: buttons that the service would refuse are not shown. The service decides all the same.
import type { Job, WhoAmI } from "./api";

/** Whether the caller has a right that depends on no job. */
export function may(caller: WhoAmI | null, right: WhoAmI["may"][number]): boolean {
  return caller?.may.includes(right) ?? false;
}

/** Whether there are tokens that the caller may see: of users, which a service on loopback may have none of. */
export function hasTokens(caller: WhoAmI | null): boolean {
  return caller !== null && (caller.token_id !== null || may(caller, "administer"));
}

/** Whether the caller may change, pause, cancel or delete this job: docs/rights.md, "the caller's own job". */
export function mayChange(caller: WhoAmI | null, job: Pick<Job, "owner" | "project" | "created_at">): boolean {
  if (!caller) return false;
  const { projects } = caller;
  const isReadable = projects === null || Object.hasOwn(projects, job.project);
  if (caller.role && caller.scope === "operate" && isReadable) return true;
  const isMember = projects === null || (isReadable && projects[job.project] === "member");
  // An earlier user of the same name had jobs of their own.
  const isOwn =
    job.owner === caller.name && (caller.since === null || Date.parse(job.created_at) >= Date.parse(caller.since));
  return isOwn && isMember && caller.scope !== "read";
}
