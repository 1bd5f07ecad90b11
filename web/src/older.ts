// Ended jobs that the stream does not tell of, as it tells of the newest: the service is asked for them, in pages.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, NeedsToken, Refused, type Job, type JobLine } from "./api";
import { faultFrom } from "./asking";
import { narrows, type Filter } from "./filters";

export const ENDED: readonly JobLine["state"][] = ["succeeded", "failed", "cancelled"];
const PAGE_SIZE = 100;
/** Jobs that end or are deleted let it ask again: after so long at least, and for a tenth of the time at most. */
const LEAST_MS = 2000;
const SHARE = 0.1;

export interface Older {
  /** Those that suit, without those that the stream tells of. */
  jobs: JobLine[];
  /** Whether it is not known yet what there is. */
  isLooking: boolean;
  /** Why that cannot be said; null: nothing is wrong. */
  fault: string | null;
  /** Whether no more of them suit. */
  isAll: boolean;
  loadMore: () => void;
}

/** What of `GET /v1/jobs` the filter asks for; null: no ended job suits. */
export function askedOf({ group, state, owner, project, label, text }: Filter): string | null {
  const ended = ENDED.find((each) => each === state);
  if (!["all", "ended"].includes(group) || (state && !ended)) return null;
  const query = new URLSearchParams({ limit: String(PAGE_SIZE) });
  for (const each of ended ? [ended] : ENDED) query.append("state", each);
  for (const [name, value] of Object.entries({ owner, project, label, name: text })) if (value) query.set(name, value);
  if (text) query.set("match", "any");
  return query.toString();
}

/** A job as the stream would tell it. */
export function lineOf({ wanted, running, spec, expected, ...job }: Job): JobLine {
  return {
    ...job,
    labels: spec.labels ?? {},
    workers: running.workers,
    servers: running.servers,
    wanted_workers: wanted.workers,
    wanted_servers: wanted.servers,
    start_seconds: expected?.start_seconds ?? null,
  };
}

/** Ended jobs that suit, beside those of `told`. Where the filter narrows, a page of them is loaded by itself. `ended`:
 * how many there are, whatever the filter. */
export function useOlder(filter: Filter, told: ReadonlyMap<string, JobLine>, ended: number): Older {
  const question = askedOf(filter);
  const [asked, ask] = useState({ question, pages: 0 });
  const pages = asked.question === question ? asked.pages : 0;
  const wanted = pages + (narrows(filter) ? 1 : 0);
  const whole = `${question} ${wanted}`;
  const [found, setFound] = useState<{
    question: string;
    whole: string;
    of: string;
    jobs: JobLine[];
    isAll: boolean;
  }>();
  const [fault, setFault] = useState<{ question: string; message: string } | null>(null);
  const [attempt, setAttempt] = useState(0);
  const timing = useRef({ runs: false, end: 0, took: 0 });
  const toldEnded = useMemo(() => [...told.values()].filter((job) => job.finished_at).map((job) => job.id), [told]);
  /** Changes whenever a job ends or an ended one is deleted. */
  const of = `${ended} ${toldEnded.join()}`;
  const newest = useRef({ told, of });
  newest.current = { told, of };
  const isMine = found?.question === question;
  const isThere = ended > toldEnded.length;
  const wants = question !== null && wanted > 0 && (isThere || (isMine && found.jobs.length > 0));

  useEffect(() => {
    if (!wants || question === null) return;
    const [stop, begin, before] = [new AbortController(), Date.now(), newest.current.of];
    let timer = 0;
    timing.current.runs = true;
    loaded(question, wanted, (id) => newest.current.told.has(id), stop.signal)
      .then(({ jobs, isAll }) => {
        setFound({ question, whole, of: before, jobs, isAll });
        setFault(null);
      })
      .catch((error: unknown) => {
        if (stop.signal.aborted || error instanceof NeedsToken) return; // the page asks for a token
        setFault({ question, message: faultFrom(error).message });
        const isFinal = error instanceof Refused && error.status < 500 && error.status !== 429;
        if (!isFinal) timer = window.setTimeout(() => setAttempt((last) => last + 1), LEAST_MS);
      })
      .finally(() => {
        if (!stop.signal.aborted) timing.current = { runs: false, end: Date.now(), took: Date.now() - begin };
      });
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [wants, whole, attempt]);

  const isDone = isMine && found.whole === whole;
  const isOld = isDone && found.of !== of;
  useEffect(() => {
    const { runs, end, took } = timing.current;
    if (!wants || !isOld || runs) return;
    const pause = end + Math.max(LEAST_MS, took / SHARE) - Date.now();
    const timer = window.setTimeout(() => setAttempt((last) => last + 1), Math.max(pause, 0));
    return () => window.clearTimeout(timer);
  }, [wants, isOld, of, found]);

  const jobs = useMemo(() => (isMine ? found.jobs.filter((job) => !told.has(job.id)) : []), [isMine, found, told]);
  const wrong = fault?.question === question ? fault.message : null;
  return {
    jobs,
    isLooking: wants && !isDone && wrong === null,
    fault: wants ? wrong : null,
    isAll: question === null || (isDone ? found.isAll : !isThere),
    loadMore: () => ask({ question, pages: pages + 1 }),
  };
}

/** So many pages that have a job of which the page is not told. */
async function loaded(
  question: string,
  pages: number,
  isTold: (id: string) => boolean,
  signal: AbortSignal,
): Promise<{ jobs: JobLine[]; isAll: boolean }> {
  const jobs: JobLine[] = [];
  let [left, cursor]: [number, string | null] = [pages, null];
  do {
    const place: string = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
    const page: { jobs: Job[]; next_cursor: string | null } = await get(`/v1/jobs?${question}${place}`, signal);
    jobs.push(...page.jobs.map(lineOf));
    if (page.jobs.some((job) => !isTold(job.id))) left -= 1;
    cursor = page.next_cursor;
  } while (cursor !== null && left > 0);
  return { jobs, isAll: cursor === null };
}
