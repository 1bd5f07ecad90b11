// The REST API as far as the page reads it, and the token that is sent along.

export interface Interval { mean: number; low: number | null; high: number | null }
export interface Allocation { workers: number; servers: number; gpu_type: string | null }
export interface NodeResources { cpu: number; memory_bytes: number; gpus: Record<string, number> }
export type State = "queued" | "running" | "paused" | "succeeded" | "failed" | "cancelled";

export interface JobLine {
  id: string; name: string; project: string; state: State; reason: string | null; message: string | null;
  workers: number; servers: number; wanted_workers: number; wanted_servers: number; step: number;
  loss: number | null; progress: number | null; remaining_seconds: Interval | null;
  created_at: string; started_at: string | null; finished_at: string | null;
  // Shown when the service has them.
  cost?: number | null; gpu_type?: string | null; deadline_at?: string | null;
}

export interface ClusterLine {
  capacity: NodeResources; used: NodeResources; nodes: number; cordoned: number; jobs: Record<State, number>;
  waiting_by_reason: Record<string, number>; last_round_at: string | null; last_round_error: string | null;
  policy: string; version: string; cluster_error: string | null;
}

export interface Job extends JobLine {
  directive: string; epoch: number | null; steps_per_second: number | null; wanted: Allocation; running: Allocation;
  remaining_steps: Interval | null; failure: string | null; rescales: number; jct_seconds: number | null;
  spec: Record<string, unknown> & { task: string; mode: string; architecture: string; priority: number };
  result: { outcome: string; final_loss: number | null; metrics: Record<string, number | null> } | null;
}

export interface Explanation {
  reason: string | null; message: string; what_would_change_it: string; sentences: string[];
  expected: { start_seconds: Interval | null; finish_seconds: Interval | null; finish_at: string | null };
}

export interface CurvePoint { step: number; loss: number | null }
export interface FittedPoint extends CurvePoint { low: number | null; high: number | null }
export interface Predictions {
  total_steps: Interval | null; confidence: number;
  /** Null without prices. */
  cost?: { so_far: number; to_finish: Interval | null } | null;
  losses: CurvePoint[]; fitted: FittedPoint[];
  speeds: { workers: number; servers: number; steps_per_second: number | null }[];
}
export interface AllocationPoint {
  at: string; at_seconds: number; step: number; workers: number; servers: number; cause: string;
  pause_seconds: number | null; lost_steps: number;
  /** Of a job with an elastic batch. */
  global_batch?: number | null;
}
export interface JobEvent { id: number; at: string; type: string; message: string }
export interface ClusterHistory {
  unit: "cpu_cores" | "gpus"; capacity: number; at: number[];
  series: { id: string; name: string; held: number[] }[]; others: number[]; training: number[]; waiting: number[];
}

const TOKEN = "optimus-token";

export class NeedsToken extends Error {}
export class Refused extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}

export function setToken(token: string | null): void {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN) !== null;
}

export async function call(path: string, options: { signal?: AbortSignal; accept?: string } = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: options.accept ?? "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { headers, signal: options.signal ?? null, cache: "no-store" });
  if (answer.status === 401) throw new NeedsToken();
  if (!answer.ok) throw new Refused(answer.status, await detailOf(answer));
  return answer;
}

export async function get<Body>(path: string, signal?: AbortSignal): Promise<Body> {
  return (await (await call(path, signal ? { signal } : {})).json()) as Body;
}

async function detailOf(answer: Response): Promise<string> {
  try {
    const problem = (await answer.json()) as { detail?: string };
    return problem.detail ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}
