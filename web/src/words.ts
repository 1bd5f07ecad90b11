// Figures as people read them. What is not known is a dash.
import type { Interval, NodeResources, Plan, ProjectQuota } from "./api";

export const UNKNOWN = "—";

export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
];
/** An end of so many units of the mean is written in its own unit, and so is the other end. */
const FAR = 1000;

/** The largest unit of which there are two or more: seconds, and its name. */
function unitOf(seconds: number): [number, string] {
  return UNITS.find(([size]) => seconds >= 2 * size) ?? [1, "s"];
}

function figure(seconds: number, [size]: [number, string]): string {
  return (Math.max(0, seconds) / size).toFixed(size === 1 ? 0 : 1);
}

interface IntervalWords {
  mean: string;
  low: string;
  high: string;
  /** That of both ends; empty where each has its own. */
  unit: string;
}

/** Each end in the unit of the mean, or in its own where the high one is far from that: as the command line writes it. */
export function intervalWords({ mean, low, high }: Interval): IntervalWords {
  const unit = unitOf(mean);
  const isFar = high != null && high >= FAR * unit[0] && unitOf(high)[1] !== unit[1];
  const inFull = (seconds: number, own: [number, string]) => `${figure(seconds, own)} ${own[1]}`;
  const end = (seconds: number | null | undefined) => {
    if (seconds == null) return "?";
    return isFar ? inFull(seconds, unitOf(seconds)) : figure(seconds, unit);
  };
  return { mean: inFull(mean, unit), low: end(low), high: end(high), unit: isFar ? "" : unit[1] };
}

/** Nothing is known but that it is `high` at most. */
export function isLimit({ mean, low, high }: Interval): boolean {
  return high === mean && !low && high >= 0.5;
}

/** 5.0 min (4.2–8.1), at most 77 s, as the command line says it */
export function left(interval: Interval | null | undefined): string {
  if (!interval || !Number.isFinite(interval.mean)) return UNKNOWN;
  const { mean, low, high } = intervalWords(interval);
  if (isLimit(interval)) return `at most ${mean}`;
  if (interval.low == null && interval.high == null) return mean;
  if (isCertain(interval) || (interval.high != null && interval.high < 0.5)) return mean;
  return `${mean} (${low}–${high})`;
}

/** Time until a start: in 5.0 min (4.2–8.1), or at any moment where it is due and the job still waits. */
export function wait(start: Interval | null | undefined): string {
  if (!start || !Number.isFinite(start.mean)) return UNKNOWN;
  return isDue(start) ? "at any moment" : `in ${left(start)}`;
}

/** Nothing is left to chance: a number of steps that is given, or printed. */
function isCertain({ low, high }: Interval): boolean {
  return low != null && low === high;
}

export function isDue(start: Interval): boolean {
  return Math.max(start.mean, start.high ?? 0) < 0.5;
}

/** 4.2–8.1 min, with 80 % probability */
export function range(interval: Interval | null | undefined): string {
  if (interval && isLimit(interval)) return "its limit";
  if (!interval || interval.low == null || interval.high == null) return "how sure that is cannot be said";
  const { low, high, unit } = intervalWords(interval);
  return `${low}–${high}${unit && ` ${unit}`} with 80 % probability`;
}

/** What is lost: 86 steps (3 min 5 s of work), 3 min 5 s of work; empty: nothing. */
export function lost(steps: number, seconds: number | null | undefined): string {
  const made = steps ? counted(steps, "step") : "";
  const work = seconds != null && seconds >= 1 ? `${duration(seconds)} of work` : "";
  return made && work ? `${made} (${work})` : made || work;
}

/** What another job would lose to a plan: as the command line says it. */
export function loses(effect: Plan["effects"][number]): string {
  const unsaved = effect.loses_since_checkpoint ? "what it made since its checkpoint, unless it saves" : UNKNOWN;
  return lost(effect.lost_steps ?? 0, effect.lost_seconds) || unsaved;
}

/** What a plan says beside the table of the jobs that would have another size. */
export function besideTable({ sentences, effects }: Pick<Plan, "sentences" | "effects">): string[] {
  const told = effects.map(({ name, job_id: id }) => `${name} (${id}) would have `);
  return sentences.filter((each) => !told.some((start) => each.startsWith(start)));
}

export function number(value: number | null | undefined, digits = 3): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6)) return value.toExponential(digits - 1);
  const decimals = value === 0 ? digits - 1 : Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(decimals);
}

/** A number of cores or GPUs: 12, 0.5 */
export function amount(value: number): string {
  return String(Math.round(value * 100) / 100);
}

/** The epoch of a job. After steps it is beyond 0 where it is known. */
export function epochOf({ epoch, step }: { epoch: number | null; step: number }): string {
  return epoch === 0 && step > 0 ? UNKNOWN : number(epoch);
}

export function count(value: number): string {
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, " ");
}

/** 937, about 2 048, at most 1 437 */
export function totalSteps(total: Interval): string {
  const how = isLimit(total) ? "at most " : "about ";
  return `${isCertain(total) ? "" : how}${count(total.mean)}`;
}

/** 2 048 (1 684–2 395) steps, at most 1 437 steps, 937 steps */
export function stepsOf(total: Interval): string {
  const [mean, low, high] = [total.mean, total.low, total.high].map((end) => (end == null ? "?" : count(end)));
  if (isLimit(total)) return `at most ${mean} steps`;
  return low === high ? `${mean} steps` : `${mean} (${low}–${high}) steps`;
}

/** 2 workers */
export function counted(value: number, thing: string): string {
  return `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
}

export function percent(fraction: number | null | undefined): string {
  if (fraction == null) return UNKNOWN;
  const part = Math.min(Math.max(fraction, 0), 1);
  // Not finished is never shown as 100 %. 29 of 100 steps are 28.999999999999996 % in numbers of the machine.
  return `${Math.min(Math.floor(100 * part + 1e-9), part === 1 ? 100 : 99)} %`;
}

export function size(workers: number, servers: number): string {
  const ofWorkers = counted(workers, "worker");
  return servers ? `${ofWorkers}, ${counted(servers, "server")}` : ofWorkers;
}

/** The same in short, as the command line says it: 3w+2p; 3w without servers; none. */
export function tasks(workers: number, servers: number): string {
  if (!workers && !servers) return "none";
  return servers ? `${workers}w+${servers}p` : `${workers}w`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 10 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

export function gpuCount(resources: NodeResources): number {
  return Object.values(resources.gpus).reduce((sum, each) => sum + each, 0);
}

export function ago(moment: string | null, now: number): string {
  return moment == null ? UNKNOWN : `${duration((now - Date.parse(moment)) / 1000)} ago`;
}

export function clock(moment: string | number): string {
  return new Date(moment).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
}

/** WaitingForResources → waiting for resources */
export function reasonWords(code: string): string {
  return code.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
}

// What a project's quota names, and whom its limits bind: as `optimus project show` says both.

/** 25 % of everything, 8 a100, at most waiting jobs 5; may not borrow */
export function quotaWords({ share, cpu, memory_bytes, gpus, limits, may_borrow }: ProjectQuota): string {
  const parts = [
    share != null && `${Number((100 * share).toPrecision(4))} % of everything`,
    cpu != null && `${Number(cpu.toPrecision(4))} core${cpu === 1 ? "" : "s"}`,
    memory_bytes != null && bytes(memory_bytes),
    ...Object.entries(gpus ?? {})
      .sort(([one], [other]) => (one < other ? -1 : 1))
      .map(([kind, number]) => `${number} ${kind}`),
    limitsGiven(limits).length > 0 &&
      `at most ${limitsGiven(limits)
        .map(([name, most]) => `${name.replaceAll("_", " ")} ${most}`)
        .join(", ")}`,
  ].filter(Boolean);
  return (parts.join(", ") || "none") + (may_borrow ? "" : "; may not borrow");
}

type Limits = ProjectQuota["limits"];

function limitsGiven(limits: Limits): [string, number][] {
  return Object.entries(limits).filter((limit): limit is [string, number] => limit[1] != null);
}

/** Rounds keep to it, whoever submitted the jobs. */
const OF_ALL_JOBS = "workers_together";
const MEMBERS = "members; not administrators and operators, nor anybody where no tokens are needed";

/** Whom limits of a project bind; empty where it has none. */
export function whomLimitsHold(limits: Limits): string {
  const given = limitsGiven(limits).map(([name]) => name);
  const isOfAll = given.includes(OF_ALL_JOBS);
  if (given.length === Number(isOfAll)) return isOfAll ? "all its jobs" : "";
  return isOfAll ? `${MEMBERS}; workers together: all its jobs` : MEMBERS;
}
