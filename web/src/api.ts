// The REST API as far as the page reads it, and the token that is sent along. What it answers is in api-types.ts, which
// `npm run types` makes of the service's own definitions.
import type { Problem } from "./api-types";

export type {
  Allocation,
  AllocationPoint,
  ClusterHistory,
  ClusterLine,
  CurvePoint,
  Curves,
  EvaluationSeries,
  Event as JobEvent,
  Explanation,
  FittedPoint,
  Interval,
  Job,
  JobLine,
  Log,
  MadeToken,
  MeasuredPoint,
  Node,
  NodeResources,
  Plan,
  Predictions,
  Project,
  ProjectQuota,
  PredictionScore,
  Queue,
  QueuedJob,
  Scorecard,
  SignInWays,
  Token,
  Usage,
  UsageLine,
  User,
  WhoAmI,
} from "./api-types";
export type State = import("./api-types").JobLine["state"];
/** What lists show and are asked for (`state` of `GET /v1/jobs`). */
export type ListedState = State | "starting";

const TOKEN = "optimus-token";

export class NeedsToken extends Error {}
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** What is wrong, by the field at fault. */
    readonly errors: { field: string; message: string }[] = [],
  ) {
    super(message);
  }
}

export function setToken(token: string | null): void {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

export function token(): string | null {
  return sessionStorage.getItem(TOKEN);
}

export function hasToken(): boolean {
  return token() !== null;
}

interface Options {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  accept?: string;
}

const listeners = new Set<() => void>();

/** Calls `listener` whenever the service answers, until what is returned is called. */
export function onAnswer(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export async function call(path: string, options: Options = {}): Promise<Response> {
  // The header tells the service that the page asks: without it the cookie of a session does not count.
  const headers: Record<string, string> = {
    ...options.headers,
    Accept: options.accept ?? "application/json",
    "X-Optimus-Page": "1",
  };
  const known = token();
  if (known) headers.Authorization = `Bearer ${known}`;
  const { method = "GET", signal = null } = options;
  const body = options.body === undefined ? null : JSON.stringify(options.body);
  if (body !== null) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, signal, body, cache: "no-store" });
  if (answer.status < 500) for (const listener of listeners) listener();
  if (answer.status === 401) throw new NeedsToken();
  if (!answer.ok) throw await refusalOf(answer);
  return answer;
}

export async function get<Body>(path: string, signal?: AbortSignal): Promise<Body> {
  return (await (await call(path, signal ? { signal } : {})).json()) as Body;
}

async function refusalOf(answer: Response): Promise<Refused> {
  try {
    const problem = (await answer.json()) as Partial<Problem>;
    return new Refused(answer.status, problem.detail ?? answer.statusText, problem.errors ?? []);
  } catch {
    return new Refused(answer.status, answer.statusText);
  }
}
