// What the page knows of the cluster, kept up to date by the stream.
import { useEffect, useState } from "preact/hooks";
import type { ClusterLine, JobLine } from "./api";
import { follow, type Message } from "./stream";

export interface World {
  cluster: ClusterLine | null;
  jobs: Map<string, JobLine>;
  /** Grows with every message: tells what has to be drawn again. */
  version: number;
  connection: "connecting" | "live" | "lost" | "needs token";
  /** When something was heard last, in the clock of this machine. */
  heardAt: number;
}

export const EMPTY: World = { cluster: null, jobs: new Map(), version: 0, connection: "connecting", heardAt: 0 };

/** The world after a message. The first `jobs` of a connection replaces all that was known. */
export function told(world: World, message: Message, isFirst: boolean): World {
  const next = { ...world, version: world.version + 1, heardAt: Date.now() };
  if (message.event === "cluster") next.cluster = JSON.parse(message.data) as ClusterLine;
  if (message.event === "jobs") {
    next.jobs = isFirst ? new Map() : new Map(world.jobs);
    for (const job of JSON.parse(message.data) as JobLine[]) next.jobs.set(job.id, job);
  }
  if (message.event === "gone") {
    next.jobs = new Map(world.jobs);
    for (const id of JSON.parse(message.data) as string[]) next.jobs.delete(id);
  }
  return next;
}

/** Follows the stream as long as the component lives; `attempt` starts it again (after a token was entered). */
export function useWorld(attempt: number): World {
  const [world, setWorld] = useState<World>(EMPTY);
  useEffect(() => {
    const stop = new AbortController();
    let isFirst = true;
    void follow(
      {
        connected: () => {
          isFirst = true;
          setWorld((old) => ({ ...old, connection: "live", heardAt: Date.now() }));
        },
        lost: () => setWorld((old) => ({ ...old, connection: "lost" })),
        needsToken: () => setWorld((old) => ({ ...old, connection: "needs token" })),
        message: (message) => {
          const first = isFirst;
          if (message.event === "jobs") isFirst = false;
          setWorld((old) => told(old, message, first));
        },
      },
      stop.signal,
    );
    return () => stop.abort();
  }, [attempt]);
  return world;
}
