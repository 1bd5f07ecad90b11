// The list of jobs: filtered, sorted and paged here, so that thousands of them stay as light as fifty.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ClusterLine, JobLine, WhoAmI } from "./api";
import { addressOfComparison, MOST, useChosen } from "./comparing";
import { filterOf, Filters, GROUPS, labelsOf, narrows, suits, type Filter } from "./filters";
import { groupOf, isBeingCancelled, stateWords, waitsForTasks, type Group } from "./groups";
import { ENDED, useOlder, type Older } from "./older";
import { useQuery } from "./route";
import { Pages, usePages } from "./pages";
import { may } from "./rights";
import { count, counted, duration, left, percent, reasonWords, size, tasks, UNKNOWN, wait } from "./words";

type Column = "name" | "state" | "size" | "progress" | "left" | "owner" | "age";
const COLUMNS: readonly Column[] = ["name", "state", "size", "progress", "left", "owner", "age"];
/** Of typing, before the address says what is looked for: browsers limit how often it may change. */
const PAUSE_MS = 300;

const ORDER: Record<Group, number> = { waiting: 0, starting: 1, training: 2, paused: 3, ended: 4, all: 5 };

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
    case "owner":
      return job.owner ?? "~"; // those without one last
    case "age":
      return -Date.parse(job.created_at);
  }
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

/** The jobs that suit, in this order. */
export function chosen(jobs: Iterable<JobLine>, filter: Filter, column: Column, falling: boolean): JobLine[] {
  const found = [...jobs].filter((job) => suits(job, filter));
  const keys = new Map(found.map((job) => [job.id, sortKey(job, column)]));
  const sign = falling ? -1 : 1;
  return found.sort((one, other) => {
    const [a, b] = [keys.get(one.id) ?? 0, keys.get(other.id) ?? 0];
    if (a !== b) return (a < b ? -1 : 1) * sign;
    if (one.created_at !== other.created_at) return one.created_at < other.created_at ? 1 : -1;
    return one.id < other.id ? -1 : 1;
  });
}

/** `left-down` → the column of the time left, falling. */
function orderOf(text: string | null): [Column, boolean] {
  const [name = "", way] = (text ?? "").split("-");
  return [COLUMNS.find((each) => each === name) ?? "state", way === "down"];
}

const ARROW = { ascending: " ↑", descending: " ↓" };

interface JobsProps {
  /** Those that the stream tells of: the active ones, and the newest that ended. */
  jobs: ReadonlyMap<string, JobLine>;
  cluster: ClusterLine;
  now: number;
  colours: ReadonlyMap<string, number>;
  /** Who looks; null: that is not known. */
  caller: WhoAmI | null;
}

export function Jobs({ jobs: told, cluster, now, colours, caller: who }: JobsProps) {
  const caller = who?.name ?? null;
  const [query, setQuery] = useQuery();
  const [picked, pick] = useChosen();
  const choose = (changes: Record<string, string | null>) => {
    setQuery(changes);
    turn(0);
  };
  const [text, type] = useTyped(query.get("find") ?? "", (find) => choose({ find }));
  const address = query.toString();
  const [column, falling] = orderOf(query.get("order"));
  const asked = filterOf(query, caller);
  const filter = { ...asked, text: text.trim().toLowerCase() };
  const leftOut = cluster.left_out ?? 0;
  const counts = useMemo(() => countsOf(told, cluster), [told, cluster]);
  const older = useOlder(asked, told, counts.ended);
  const jobs = useMemo(
    () => new Map([...told, ...older.jobs.map((job) => [job.id, job] as const)]),
    [told, older.jobs],
  );
  const found = useMemo(() => chosen(jobs.values(), filter, column, falling), [jobs, address, caller, text]);
  const isTyping = filter.text !== asked.text;
  const hasOwners = useMemo(() => [...jobs.values()].some((job) => job.owner !== null), [jobs]);
  const { group } = filter;
  const onlyMine = Boolean(query.get("mine"));
  const { shown, page, turn } = usePages(found);
  const order = (wanted: Column) => choose({ order: column === wanted && !falling ? `${wanted}-down` : wanted });
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
          {GROUPS.map((each) => (
            <button
              type="button"
              aria-pressed={group === each}
              onClick={() => choose({ show: each === "all" ? null : each })}
            >
              {each} <span class="quiet">{counts[each]}</span>
            </button>
          ))}
        </div>
        {hasOwners && caller && (
          <button
            type="button"
            aria-pressed={onlyMine}
            onClick={() => choose({ mine: onlyMine ? null : "yes", owner: null })}
          >
            mine
          </button>
        )}
        <input
          type="search"
          placeholder="name, id, owner, project or label"
          aria-label="Find jobs by name, id, owner, project or label"
          value={text}
          onInput={(event) => {
            type(event.currentTarget.value);
            turn(0);
          }}
        />
      </div>
      {leftOut > 0 && (
        <p role="status">
          {counted(leftOut, "older active job")} {leftOut === 1 ? "is" : "are"} not on this page: counted under “all”
          only, and in no filter. <code>optimus list --name PART</code>, <code>--mine</code> or <code>--all</code> finds
          them; a job’s page opens by its address, <code>#/jobs/ID</code>.
        </p>
      )}
      <Filters jobs={jobs} counts={cluster.jobs} hasMore={!older.isAll} query={query} choose={choose} />
      <div class="table">
        <table class={`jobs ${hasOwners ? "owned" : ""}`} aria-rowcount={found.length}>
          <colgroup>
            <col />
            <col class="state" />
            <col class="has" />
            <col class="progress" />
            <col class="left" />
            {hasOwners && <col class="owner" />}
            <col class="age" />
          </colgroup>
          <thead>
            <tr>
              {heading("name", "job")}
              {heading("state", "state")}
              {heading("size", "has", "wide")}
              {heading("progress", "progress")}
              {heading("left", "time left", "figure left")}
              {hasOwners && heading("owner", "owner", "owner")}
              {heading("age", "age", "figure age")}
            </tr>
          </thead>
          <tbody>
            {shown.map((job) => (
              <Row
                key={job.id}
                job={job}
                now={now}
                colour={colours.get(job.id)}
                hasOwners={hasOwners}
                isPicked={picked.includes(job.id)}
                mayPick={picked.length < MOST}
                pick={pick}
                find={choose}
              />
            ))}
          </tbody>
        </table>
      </div>
      {found.length === 0 && !isTyping && older.isAll && (
        <p class="quiet empty">
          {counts.all === 0 ? (
            <>
              No jobs yet.
              {may(who, "submit") && (
                <>
                  {" "}
                  <a href="#/submit">Submit one</a>, here or by{" "}
                  <code>optimus submit --task optimus_workers.zoo.digits:mlp</code>
                </>
              )}
            </>
          ) : (
            `No job ${leftOut > 0 ? "on this page " : ""}is like that.`
          )}
        </p>
      )}
      {picked.length > 0 && <Picked picked={picked} jobs={jobs} clear={() => pick(null)} />}
      <Pages of="the list" total={found.length} hasMore={!older.isAll} page={page} turn={turn} />
      <Rest
        older={isTyping ? { ...older, isLooking: !older.isAll, fault: null } : older}
        left={narrows(filter) ? null : counts.ended - [...jobs.values()].filter((job) => job.finished_at).length}
      />
    </section>
  );
}

/** How many of each group there are: of ended ones also those that the stream does not tell of. */
export function countsOf(told: ReadonlyMap<string, JobLine>, cluster: ClusterLine): Record<Group, number> {
  const sum = (states: readonly string[]) =>
    Object.entries(cluster.jobs).reduce((before, [state, n]) => before + (states.includes(state) ? n : 0), 0);
  const counts: Record<Group, number> = { all: 0, waiting: 0, starting: 0, training: 0, paused: 0, ended: 0 };
  for (const job of told.values()) counts[groupOf(job)] += 1;
  return { ...counts, all: sum(Object.keys(cluster.jobs)), ended: sum(ENDED) };
}

/** What the list does not have of older ended jobs, and what loads it. `left`: how many; null: that is not known. */
function Rest({ older, left }: { older: Older; left: number | null }) {
  const { isLooking, fault, isAll, loadMore } = older;
  if (isLooking || fault !== null) {
    return (
      <p class="rest quiet" role="status">
        {isLooking ? "Looking through older ended jobs …" : `Older ended jobs are not all here: ${fault}`}
      </p>
    );
  }
  if (isAll) return null;
  return (
    <p class="rest">
      <span class="quiet" role="status">
        {left === null
          ? "There may be more among older ended jobs; the list is sorted without them."
          : `${counted(left, "older ended job")} ${left === 1 ? "is" : "are"} not loaded; the list is sorted without them.`}
      </span>
      <button type="button" onClick={loadMore}>
        Load older jobs
      </button>
    </p>
  );
}

/** What was typed, and what takes more of it; `tell` is called with it when nobody has typed for a moment. */
function useTyped(given: string, tell: (text: string) => void): [string, (text: string) => void] {
  const [text, setText] = useState(given);
  const timer = useRef(0);
  useEffect(() => {
    window.clearTimeout(timer.current); // somebody else has changed the address
    setText(given);
  }, [given]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const type = (next: string) => {
    setText(next);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => tell(next), PAUSE_MS);
  };
  return [text, type];
}

interface PickedProps {
  picked: readonly string[];
  jobs: ReadonlyMap<string, JobLine>;
  clear: () => void;
}

/** The jobs that were chosen to be compared, at the foot of the window. */
function Picked({ picked, jobs, clear }: PickedProps) {
  const names = picked.map((id) => jobs.get(id)?.name ?? id).join(", ");
  return (
    <div class="picked" role="region" aria-label="Jobs to compare">
      <span role="status">
        {counted(picked.length, "job")} chosen
        {picked.length === MOST && ", the most that can be compared"}
        <span class="quiet wide" title={names}>
          {" "}
          {names}
        </span>
      </span>
      <a class="button" href={addressOfComparison(picked)}>
        Compare
      </a>
      <button type="button" onClick={clear}>
        Choose none
      </button>
    </div>
  );
}

interface RowProps {
  job: JobLine;
  now: number;
  colour: number | undefined;
  hasOwners: boolean;
  isPicked: boolean;
  mayPick: boolean;
  pick: (id: string) => void;
  find: (changes: Record<string, string | null>) => void;
}

function Row({ job, now, colour, hasOwners, isPicked, mayPick, pick, find }: RowProps) {
  const group = groupOf(job);
  const project = job.project === "default" ? null : job.project;
  const place = [project, job.id].filter(Boolean).join(" · ");
  const age = ((job.finished_at ? Date.parse(job.finished_at) : now) - Date.parse(job.created_at)) / 1000;
  return (
    <tr class={group}>
      <th scope="row">
        <span class="name">
          <input
            type="checkbox"
            aria-label={`Compare ${job.name} (${job.id})`}
            checked={isPicked}
            disabled={!isPicked && !mayPick}
            onChange={() => pick(job.id)}
          />
          <span
            class={`swatch ${colour === undefined || group === "waiting" || group === "paused" ? "none" : `series-${colour}`}`}
          />
          <a href={`#/jobs/${job.id}`} title={job.name}>
            {job.name}
          </a>
        </span>
        <span class="under" title={[job.owner, place].filter(Boolean).join(" · ")}>
          {job.owner && <span class="narrow">{job.owner} · </span>}
          {place}
        </span>
        <Labels labels={labelsOf(job)} find={(label) => find({ label })} />
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
      {hasOwners && (
        <td class="owner">
          {job.owner ? (
            <button
              type="button"
              class="plain"
              title={`Jobs of ${job.owner}`}
              onClick={() => find({ owner: job.owner, mine: null })}
            >
              {job.owner}
            </button>
          ) : (
            <span class="quiet">{UNKNOWN}</span>
          )}
        </td>
      )}
      <td class="figure age">{duration((now - Date.parse(job.created_at)) / 1000)}</td>
    </tr>
  );
}

/** Of a job that went on beyond its likeliest end. */
const LONGER = "longer than predicted";

export const BEING_CANCELLED = "being cancelled";

/** The time that matters of a job in its group; `age`: from its submission to its end, or until now. */
function timeOf(job: JobLine, age: number): string {
  if (isBeingCancelled(job)) return BEING_CANCELLED;
  switch (groupOf(job)) {
    case "starting":
    case "training":
      return job.finishing ? "finishing" : left(job.remaining_seconds);
    case "ended":
      return `took ${duration(age)}`;
    default:
      if (!waitsForTasks(job)) return UNKNOWN;
      if (job.start_seconds) return `starts ${wait(job.start_seconds)}`;
      return job.state === "queued" ? `waits ${duration(age)}` : UNKNOWN;
  }
}

/** Why a job waits, makes no step, or why it failed: one or two lines; the job's page has the rest. */
function Cause({ job }: { job: JobLine }) {
  if (["waiting", "paused"].includes(groupOf(job))) {
    return (
      <span class="under cause" title={job.message ?? ""}>
        {job.reason ? reasonWords(job.reason) : (job.message ?? "not looked at yet")}
      </span>
    );
  }
  if (job.standstill) return <span class="under cause">{job.standstill}</span>;
  if (job.state !== "failed" || !job.message) return null;
  return (
    <span class="under cause" title={job.message}>
      {job.message.replace(/^The job failed: /, "")}
    </span>
  );
}

export function Badge({
  job,
}: {
  job: Pick<JobLine, "state" | "reason" | "wanted_workers" | "workers" | "finished_at">;
}) {
  const words = stateWords(job);
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
