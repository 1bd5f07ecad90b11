// What a view asks of the service: answers that are shown and asked for again, and changes with their refusals in words.
import { useEffect, useState } from "preact/hooks";
import { call, get, NeedsToken, onAnswer, Refused } from "./api";

const REFRESH_MS = 10_000;

/** What the service answers at `path`, asked again every ten seconds while it is shown; and what asks at once. */
export function useAnswer<Body>(path: string): [Body | null, () => void] {
  const [found, setFound] = useState<Body | null>(null);
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const load = () =>
      get<Body>(path, stop.signal).then(setFound, (error) => {
        // Whoever may no longer read it does not see what it was. The stream says when the service is away.
        if (error instanceof Refused && error.status < 500) setFound(null);
      });
    void load();
    const timer = window.setInterval(() => void load(), REFRESH_MS);
    return () => {
      stop.abort();
      window.clearInterval(timer);
    };
  }, [path, asked]);
  return [found, () => setAsked((before) => before + 1)];
}

export interface Change {
  path: string;
  method: "POST" | "PUT" | "PATCH" | "DELETE";
  body?: unknown;
}

/** What the service, or the page before it asks, does not take. */
export interface Fault {
  message: string;
  /** By the field at fault. */
  errors: { field: string; message: string }[];
}

/** A fault of one field. */
export function faultAt(field: string, message: string): Fault {
  return { message, errors: [{ field, message }] };
}

const UNREACHABLE: Fault = { message: "The service cannot be reached.", errors: [] };

/** A fault that is shown until another takes its place; that the service cannot be reached, until it answers again. */
export function useFault(): [Fault | null, (fault: Fault | null) => void] {
  const [fault, setFault] = useState<Fault | null>(null);
  useEffect(() => onAnswer(() => setFault((shown) => (shown === UNREACHABLE ? null : shown))), []);
  return [fault, setFault];
}

/** `fieldOf`: the field at fault by the status of a refusal that names none. */
export function faultFrom(error: unknown, fieldOf: Record<number, string> = {}): Fault {
  if (!(error instanceof Refused)) return UNREACHABLE;
  const field = fieldOf[error.status];
  return field && error.errors.length === 0 ? faultAt(field, error.message) : error;
}

/** Sends changes one at a time: what sends one, whether one is under way, why the last was refused, and what says so
 * before the service is asked, or that it no longer holds. */
export function useChange(
  needsToken: () => void,
  fieldOf: Record<number, string> = {},
): {
  send: (change: Change, done: (answer: Response) => void | Promise<void>) => void;
  sends: boolean;
  refusal: Fault | null;
  refuse: (fault: Fault | null) => void;
} {
  const [sends, setSends] = useState(false);
  const [refusal, setRefusal] = useFault();
  const run = async ({ path, ...options }: Change, done: (answer: Response) => void | Promise<void>) => {
    setSends(true);
    setRefusal(null);
    try {
      await done(await call(path, options));
    } catch (error) {
      if (error instanceof NeedsToken) return needsToken();
      setRefusal(faultFrom(error, fieldOf));
    }
    setSends(false);
  };
  return { send: (change, done) => void run(change, done), sends, refusal, refuse: setRefusal };
}
