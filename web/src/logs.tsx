// What the tasks of a job printed: asked for when it is opened, one task at a time, tracebacks first.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, type Job, type Log } from "./api";
import { OwnFrames } from "./texts";

const REFRESH_MS = 5000;
const TAIL_BYTES = 65_536;

export function Logs({ job }: { job: Pick<Job, "id" | "finished_at"> }) {
  const [open, setOpen] = useState(false);
  return (
    <section aria-labelledby="logs">
      <h2 id="logs">Logs</h2>
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>What its tasks printed</summary>
        {open && <Open job={job} />}
      </details>
    </section>
  );
}

/** A text that grows: its end is in sight, until somebody scrolls up. */
function Tail({ name, text }: { name: string; text: string }) {
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (box.current && follows.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return (
    <pre
      ref={box}
      tabIndex={0}
      aria-label={name}
      onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
        follows.current = scrollTop + clientHeight >= scrollHeight - 2;
      }}
    >
      {text}
    </pre>
  );
}

function Open({ job }: { job: Pick<Job, "id" | "finished_at"> }) {
  const base = `/v1/jobs/${encodeURIComponent(job.id)}/logs`;
  const [names, setNames] = useState<string[] | null>(null);
  const [chosen, choose] = useState<string | null>(null);
  const [text, setText] = useState<string | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    // One byte of each says which tasks there are, also those that have ended.
    get<{ logs: Log[] }>(`${base}?tail_bytes=1`, stop.signal).then(
      ({ logs }) => {
        const found = logs.map((log) => log.task);
        setNames(found);
        choose(found.find((name) => /-worker-0-\d+$/.test(name)) ?? found[0] ?? null);
      },
      () => !stop.signal.aborted && setNames([]),
    );
    return () => stop.abort();
  }, [job.id]);
  useEffect(() => {
    if (!chosen) return undefined;
    const stop = new AbortController();
    setText(null);
    const load = () =>
      get<{ logs: Log[] }>(`${base}?task=${encodeURIComponent(chosen)}&tail_bytes=${TAIL_BYTES}`, stop.signal).then(
        ({ logs }) => setText(logs[0]?.text ?? ""),
        () => undefined, // the stream says when the service is away
      );
    void load();
    const timer = job.finished_at ? 0 : window.setInterval(() => void load(), REFRESH_MS);
    return () => {
      stop.abort();
      window.clearInterval(timer);
    };
  }, [chosen, job.finished_at]);
  if (names === null) return <p class="quiet">Loading …</p>;
  if (!names.length) return <p class="quiet">None of its tasks has a log here.</p>;
  return (
    <>
      <label class="which">
        Task{" "}
        <select value={chosen ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
          {names.map((name) => (
            <option value={name}>{name}</option>
          ))}
        </select>
      </label>
      {text !== null && (
        <>
          <OwnFrames text={text} />
          {text.trim() ? (
            <Tail key={chosen} name={`Log of ${chosen}`} text={text.trimEnd()} />
          ) : (
            <p class="quiet">It has printed nothing.</p>
          )}
        </>
      )}
    </>
  );
}
