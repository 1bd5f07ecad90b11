// The REST API as far as the page reads it, and the token that is sent along. What it answers is in api-types.ts, which
// `npm run types` makes of the service's own definitions.
import type { Problem } from "./api-types";

export type {
  Allocation,
  AllocationPoint,
  ClusterHistory,
  ClusterLine,
  CurvePoint,
  EvaluationSeries,
  Event as JobEvent,
  Explanation,
  FittedPoint,
  Interval,
  Job,
  JobLine,
  Log,
  Node,
  NodeResources,
  Predictions,
  Project,
  PromiseScore,
  Scorecard,
} from "./api-types";
export type State = import("./api-types").JobLine["state"];

const TOKEN = "optimus-token";

export class NeedsToken extends Error {}
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
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
  method?: "GET" | "POST";
  signal?: AbortSignal;
  accept?: string;
}

export async function call(path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: options.accept ?? "application/json" };
  const known = token();
  if (known) headers.Authorization = `Bearer ${known}`;
  const { method = "GET", signal = null } = options;
  const answer = await fetch(path, { method, headers, signal, cache: "no-store" });
  if (answer.status === 401) throw new NeedsToken();
  if (!answer.ok) throw new Refused(answer.status, await detailOf(answer));
  return answer;
}

export async function get<Body>(path: string, signal?: AbortSignal): Promise<Body> {
  return (await (await call(path, signal ? { signal } : {})).json()) as Body;
}

async function detailOf(answer: Response): Promise<string> {
  try {
    const problem = (await answer.json()) as Partial<Problem>;
    return problem.detail ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}
