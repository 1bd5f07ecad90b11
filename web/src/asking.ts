// What a view asks of the service: answers that are shown and asked for again, and changes with their refusals in words.
import { useEffect, useState } from "preact/hooks";
import { call, get, NeedsToken, Refused } from "./api";

const REFRESH_MS = 10_000;

/** What the service answers at `path`, asked again every ten seconds while it is shown; and what asks at once. */
export function useAnswer<Body>(path: string): [Body | null, () => void] {
  const [found, setFound] = useState<Body | null>(null);
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const load = () => get<Body>(path, stop.signal).then(setFound, () => undefined); // the stream says when it is away
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

/** Sends changes one at a time: what sends one, whether one is under way, and why the last was refused. */
export function useChange(needsToken: () => void): {
  send: (change: Change, done: (answer: Response) => void | Promise<void>) => void;
  sends: boolean;
  refusal: string | null;
} {
  const [sends, setSends] = useState(false);
  const [refusal, setRefusal] = useState<string | null>(null);
  const run = async ({ path, ...options }: Change, done: (answer: Response) => void | Promise<void>) => {
    setSends(true);
    setRefusal(null);
    try {
      await done(await call(path, options));
    } catch (error) {
      if (error instanceof NeedsToken) return needsToken();
      setRefusal(error instanceof Refused ? wordsOf(error) : "The service cannot be reached.");
    }
    setSends(false);
  };
  return { send: (change, done) => void run(change, done), sends, refusal };
}

/** A refusal in words, with the fields at fault. */
export function wordsOf({ message, errors }: Refused): string {
  return errors.length ? errors.map((each) => `${each.field}: ${each.message}`).join("; ") : message;
}
