// The list of jobs: filtered, sorted and paged here, so that thousands of them stay as light as fifty.
import { useMemo, useState } from "preact/hooks";
import type { JobLine } from "./api";
import { count, counted, duration, left, percent, reasonWords, size, tasks, UNKNOWN } from "./words";

export const PAGE_SIZE = 50;
type Group = "all" | "waiting" | "training" | "ended";
type Column = "name" | "state" | "size" | "progress" | "left" | "age";

export function groupOf(job: JobLine): Group {
  if (job.finished_at) return "ended";
  return job.wanted_workers + job.workers > 0 ? "training" : "waiting";
}

const ORDER: Record<Group, number> = { waiting: 0, training: 1, ended: 2, all: 3 };

function sortKey(job: JobLine, column: Column): string | number {
  switch (column) {
    case "name":
      return job.name;
    case "state":
      return `${ORDER[groupOf(job)]}${job.state}`;
    case "size":
      return -(job.workers + job.servers);
    case "progress":
      return -(job.progress ?? -1);
    case "left":
      return job.remaining_seconds?.mean ?? Number.MAX_VALUE;
    case "age":
      return -Date.parse(job.created_at);
  }
}

/** team=search, or urgent where a label has no value: as `optimus list --label` takes them. */
export function labelsOf({ labels }: { labels?: Record<string, string> }): string[] {
  return Object.entries(labels ?? {})
    .map(([name, value]) => (value ? `${name}=${value}` : name))
    .sort();
}

/** Labels of a job; a click looks for the jobs that have the same. */
export function Labels({ labels, find }: { labels: string[]; find?: (label: string) => void }) {
  if (labels.length === 0) return null;
  return (
    <ul class="labels" aria-label="Labels">
      {labels.map((each) => (
        <li key={each}>
          {find ? (
            <button type="button" title={`Jobs with ${each}`} onClick={() => find(each)}>
              {each}
            </button>
          ) : (
            <span>{each}</span>
          )}
        </li>
      ))}
    </ul>
  );
}

export function chosen(
  jobs: Iterable<JobLine>,
  group: Group,
  text: string,
  column: Column,
  falling: boolean,
  owner: string | null = null,
): JobLine[] {
  const wanted = text.trim().toLowerCase();
  const found = [...jobs].filter(
    (job) =>
      (group === "all" || groupOf(job) === group) &&
      (!wanted ||
        [job.name, job.id, job.project, job.owner ?? "", ...labelsOf(job)].some((each) =>
          each.toLowerCase().includes(wanted),
        )) &&
      (owner === null || job.owner === owner),
  );
  const keys = new Map(found.map((job) => [job.id, sortKey(job, column)]));
  const sign = falling ? -1 : 1;
  return found.sort((one, other) => {
    const [a, b] = [keys.get(one.id) ?? 0, keys.get(other.id) ?? 0];
    if (a !== b) return (a < b ? -1 : 1) * sign;
    if (one.created_at !== other.created_at) return one.created_at < other.created_at ? 1 : -1;
    return one.id < other.id ? -1 : 1;
  });
}

const ARROW = { ascending: " ↑", descending: " ↓" };

export function Jobs({
  jobs,
  now,
  colours,
  caller,
}: {
  jobs: Map<string, JobLine>;
  now: number;
  colours: ReadonlyMap<string, number>;
  /** Who looks; null: that is not known. */
  caller: string | null;
}) {
  const [group, setGroup] = useState<Group>("all");
  const [text, setText] = useState("");
  const [[column, falling], setOrder] = useState<[Column, boolean]>(["state", false]);
  const [page, setPage] = useState(0);
  const [onlyMine, setOnlyMine] = useState(false);
  const owner = onlyMine ? caller : null;
  const found = useMemo(
    () => chosen(jobs.values(), group, text, column, falling, owner),
    [jobs, group, text, column, falling, owner],
  );
  const counts = useMemo(() => {
    const counts: Record<Group, number> = { all: jobs.size, waiting: 0, training: 0, ended: 0 };
    for (const job of jobs.values()) counts[groupOf(job)] += 1;
    return counts;
  }, [jobs]);
  const owners = useMemo(() => new Set([...jobs.values()].flatMap((job) => job.owner ?? [])), [jobs]);
  const find = (wanted: string) => {
    setText(wanted);
    setPage(0);
  };
  const pages = Math.max(1, Math.ceil(found.length / PAGE_SIZE));
  const shown = Math.min(page, pages - 1);
  const order = (wanted: Column) => {
    setOrder([wanted, column === wanted && !falling]);
    setPage(0);
  };
  const direction = falling ? "descending" : "ascending";
  const heading = (name: Column, words: string, className = "") => (
    <th scope="col" class={className} aria-sort={column === name ? direction : "none"}>
      <button type="button" class="sort" onClick={() => order(name)}>
        {words}
        <span aria-hidden="true">{column === name ? ARROW[direction] : ""}</span>
      </button>
    </th>
  );
  return (
    <section aria-labelledby="jobs">
      <div class="row">
        <h2 id="jobs">Jobs</h2>
        <div class="choice" role="group" aria-label="Which jobs">
          {(["all", "waiting", "training", "ended"] as Group[]).map((each) => (
            <button
              type="button"
              aria-pressed={group === each}
              onClick={() => {
                setGroup(each);
                setPage(0);
              }}
            >
              {each} <span class="quiet">{counts[each]}</span>
            </button>
          ))}
        </div>
        {owners.size > 0 && caller && (
          <button
            type="button"
            aria-pressed={onlyMine}
            onClick={() => {
              setOnlyMine(!onlyMine);
              setPage(0);
            }}
          >
            mine
          </button>
        )}
        <input
          type="search"
          placeholder="name, id, owner, project or label"
          aria-label="Find jobs by name, id, owner, project or label"
          value={text}
          onInput={(event) => find(event.currentTarget.value)}
        />
      </div>
      <div class="table">
        <table class="jobs" aria-rowcount={found.length}>
          <colgroup>
            <col />
            <col class="state" />
            <col class="has" />
            <col class="progress" />
            <col class="left" />
            <col class="age" />
          </colgroup>
          <thead>
            <tr>
              {heading("name", "job")}
              {heading("state", "state")}
              {heading("size", "has", "wide")}
              {heading("progress", "progress")}
              {heading("left", "time left", "figure left")}
              {heading("age", "age", "figure age")}
            </tr>
          </thead>
          <tbody>
            {found.slice(shown * PAGE_SIZE, (shown + 1) * PAGE_SIZE).map((job) => (
              <Row key={job.id} job={job} now={now} colour={colours.get(job.id)} find={find} />
            ))}
          </tbody>
        </table>
      </div>
      {found.length === 0 && (
        <p class="quiet empty">
          {jobs.size === 0 ? (
            <>
              No jobs yet. Submit one: <code>optimus submit --task optimus_workers.zoo.digits:mlp</code>
            </>
          ) : (
            "No job is like that."
          )}
        </p>
      )}
      {pages > 1 && (
        <nav class="pages" aria-label="Pages of the list">
          <button type="button" disabled={shown === 0} onClick={() => setPage(shown - 1)}>
            previous
          </button>
          <span>
            {shown * PAGE_SIZE + 1}–{Math.min((shown + 1) * PAGE_SIZE, found.length)} of {count(found.length)}
          </span>
          <button type="button" disabled={shown === pages - 1} onClick={() => setPage(shown + 1)}>
            next
          </button>
        </nav>
      )}
    </section>
  );
}

interface RowProps {
  job: JobLine;
  now: number;
  colour: number | undefined;
  find: (label: string) => void;
}

function Row({ job, now, colour, find }: RowProps) {
  const group = groupOf(job);
  const place = [job.project === "default" ? null : job.project, job.owner, job.id].filter(Boolean).join(" · ");
  const age = ((job.finished_at ? Date.parse(job.finished_at) : now) - Date.parse(job.created_at)) / 1000;
  return (
    <tr class={group}>
      <th scope="row">
        <span class="name">
          <span class={`swatch ${colour === undefined || group === "waiting" ? "none" : `series-${colour}`}`} />
          <a href={`#/jobs/${job.id}`} title={job.name}>
            {job.name}
          </a>
        </span>
        <span class="under" title={place}>
          {place}
        </span>
        <Labels labels={labelsOf(job)} find={find} />
      </th>
      <td>
        <Badge job={job} />
        <Cause job={job} />
      </td>
      <td class="wide">
        <Has job={job} />
      </td>
      <td class="progress">
        {group === "ended" ? <span class="quiet">{counted(job.step, "step")}</span> : <Progress job={job} />}
      </td>
      <td class="figure left" title={job.longer_than_predicted ? LONGER : undefined}>
        {timeOf(job, age)}
        {job.longer_than_predicted && <span class="unseen">, {LONGER}</span>}
      </td>
      <td class="figure age">{duration((now - Date.parse(job.created_at)) / 1000)}</td>
    </tr>
  );
}

/** Of a job that went on beyond its likeliest end. */
const LONGER = "longer than predicted";

/** The time that matters of a job in its group; `age`: from its submission to its end, or until now. */
function timeOf(job: JobLine, age: number): string {
  switch (groupOf(job)) {
    case "training":
      return job.finishing ? "finishing" : left(job.remaining_seconds);
    case "ended":
      return `took ${duration(age)}`;
    default:
      if (job.start_seconds) return `starts in ${left(job.start_seconds)}`;
      return job.state === "queued" ? `waits ${duration(age)}` : UNKNOWN;
  }
}

/** Why a job waits, or why it failed: one or two lines; the job's page has the rest. */
function Cause({ job }: { job: JobLine }) {
  if (groupOf(job) === "waiting") {
    return (
      <span class="under cause" title={job.message ?? ""}>
        {job.reason ? reasonWords(job.reason) : (job.message ?? "not looked at yet")}
      </span>
    );
  }
  if (job.state !== "failed" || !job.message) return null;
  return (
    <span class="under cause" title={job.message}>
      {job.message.replace(/^The job failed: /, "")}
    </span>
  );
}

export function Badge({ job }: { job: Pick<JobLine, "state" | "wanted_workers" | "workers" | "finished_at"> }) {
  const queued = job.wanted_workers > 0 ? "starting" : "queued";
  const words = job.state === "queued" ? queued : job.state;
  return <span class={`badge ${words}`}>{words}</span>;
}

function Has({ job }: { job: JobLine }) {
  if (job.finished_at) return <span class="quiet">{UNKNOWN}</span>;
  const differs = job.wanted_workers !== job.workers || job.wanted_servers !== job.servers;
  return (
    <span title={size(job.workers, job.servers)}>
      {tasks(job.workers, job.servers)}
      {differs && <span class="quiet"> → {tasks(job.wanted_workers, job.wanted_servers)}</span>}
    </span>
  );
}

export function Progress({ job }: { job: Pick<JobLine, "name" | "step" | "progress"> }) {
  if (job.progress == null) return <span class="quiet">{job.step ? `step ${count(job.step)}` : UNKNOWN}</span>;
  return (
    <span class="meter">
      <progress max={1} value={job.progress} aria-label={`progress of ${job.name}`} />
      <span>{percent(job.progress)}</span>
    </span>
  );
}
