// Which jobs of the list are shown: what is chosen stands in the address, so that it can be sent to somebody.
import { useMemo } from "preact/hooks";
import type { ClusterLine, JobLine, ListedState } from "./api";
import { groupOf, isOfState, type Group } from "./groups";
import { count } from "./words";

export const GROUPS: readonly Group[] = ["all", "waiting", "starting", "training", "paused", "ended"];
const STATES: readonly ListedState[] = ["queued", "starting", "running", "paused", "succeeded", "failed", "cancelled"];
/** More of them nobody looks through: the field beside finds every one. */
const MOST_OPTIONS = 200;
/** What of the address chooses jobs. */
const NAMES = ["show", "state", "owner", "project", "label", "find", "mine"] as const;

export interface Filter {
  group: Group;
  state: string;
  owner: string;
  project: string;
  label: string;
  /** In lower case. */
  text: string;
}

/** team=search, or urgent where a label has no value: as `optimus list --label` takes them. */
export function labelsOf({ labels }: { labels?: Record<string, string> }): string[] {
  return Object.entries(labels ?? {})
    .map(([name, value]) => (value ? `${name}=${value}` : name))
    .sort();
}

/** `caller`: whose jobs are *mine*. */
export function filterOf(query: URLSearchParams, caller: string | null): Filter {
  const given = (name: (typeof NAMES)[number]) => query.get(name) ?? "";
  return {
    group: GROUPS.find((each) => each === given("show")) ?? "all",
    state: given("state"),
    owner: given("mine") && caller ? caller : given("owner"),
    project: given("project"),
    label: given("label"),
    text: given("find").trim().toLowerCase(),
  };
}

export function isChosen(query: URLSearchParams): boolean {
  return NAMES.some((name) => query.get(name));
}

/** Whether it asks for more than a group. */
export function narrows({ state, owner, project, label, text }: Filter): boolean {
  return Boolean(state || owner || project || label || text);
}

/** The changes of the address that let all jobs be seen again. */
export function noFilter(): Record<string, null> {
  return Object.fromEntries(NAMES.map((name) => [name, null]));
}

export function suits(job: JobLine, filter: Filter): boolean {
  const { group, state, owner, project, label, text } = filter;
  if (group !== "all" && groupOf(job) !== group) return false;
  if (state && !isOfState(job, state)) return false;
  if (owner && job.owner !== owner) return false;
  if (project && job.project !== project) return false;
  const labels = label || text ? labelsOf(job) : [];
  if (label && !labels.some((each) => each === label || each.startsWith(`${label}=`))) return false;
  const words = [job.name, job.id, job.project, job.owner ?? "", ...labels];
  return !text || words.some((each) => each.toLowerCase().includes(text));
}

interface FiltersProps {
  jobs: ReadonlyMap<string, JobLine>;
  /** How many jobs of each state there are. */
  counts: ClusterLine["jobs"];
  /** Whether there are jobs beside these. */
  hasMore: boolean;
  query: URLSearchParams;
  choose: (changes: Record<string, string | null>) => void;
}

/** Choices of the states that there are, and of the owners, projects and labels of these jobs. */
export function Filters({ jobs, counts, hasMore, query, choose }: FiltersProps) {
  const found = useMemo(() => {
    const all = [...jobs.values()];
    return {
      state: STATES.filter((each) => (each === "starting" ? all.some((job) => isOfState(job, each)) : counts[each])),
      owner: sorted(all.flatMap((job) => job.owner ?? [])),
      project: sorted(all.map((job) => job.project)),
      label: sorted(all.flatMap(labelsOf)),
    };
  }, [jobs, counts]);
  /** `least`: options that tell jobs apart; every job has a state and a project, and not every one an owner. */
  const one = (name: keyof typeof found, all: string, least: number) => (
    <Choice
      name={name}
      least={least}
      all={all}
      options={found[name]}
      hasMore={hasMore && name !== "state"}
      value={query.get(name) ?? ""}
      choose={(value) => choose(name === "owner" ? { owner: value, mine: null } : { [name]: value })}
    />
  );
  return (
    <div class="row filters" role="group" aria-label="Only jobs of">
      {one("state", "any state", 2)}
      {one("owner", "all owners", 1)}
      {one("project", "all projects", 2)}
      {one("label", "any label", 1)}
      {isChosen(query) && (
        <button type="button" onClick={() => choose(noFilter())}>
          Show all
        </button>
      )}
    </div>
  );
}

function sorted(words: string[]): string[] {
  return [...new Set(words)].sort();
}

interface ChoiceProps {
  name: string;
  least: number;
  all: string;
  options: readonly string[];
  /** Whether there may be others. */
  hasMore: boolean;
  value: string;
  choose: (value: string | null) => void;
}

function Choice({ name, least, all, options, hasMore, value, choose }: ChoiceProps) {
  if (options.length < least && !value) return null;
  const shown = options.slice(0, MOST_OPTIONS);
  const missing = value && !shown.includes(value) ? [value] : [];
  return (
    <select
      aria-label={name}
      class={value ? "chosen" : ""}
      value={value}
      onChange={(event) => choose(event.currentTarget.value || null)}
    >
      <option value="">{all}</option>
      {[...missing, ...shown].map((each) => (
        <option key={each} value={each}>
          {each}
        </option>
      ))}
      {options.length > shown.length && <option disabled>{count(options.length - shown.length)} more</option>}
      {hasMore && <option disabled>others: search</option>}
    </select>
  );
}
