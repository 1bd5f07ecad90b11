// Who used how much in a month, and what it cost: what `optimus usage` tells, by owner, project or both, and as CSV.
import { useMemo } from "preact/hooks";
import type { Usage, UsageLine } from "./api";
import { useAnswer } from "./asking";
import { Wide } from "./charts";
import { Pages, usePages } from "./pages";
import { addressOf, useQuery } from "./route";
import { clock, count, UNKNOWN } from "./words";

/** Months that can be chosen: two years. */
const MONTHS = 24;
/** GPU types with a column of their own; the others share one. */
const MOST_TYPES = 4;
const OTHER = "other GPUs";

const GROUPINGS = { both: "owner and project", owner: "owner", project: "project" };
type Grouping = keyof typeof GROUPINGS;

/** What somebody used in a month. */
interface Share {
  owner: string | null;
  project: string | null;
  workerHours: number;
  coreHours: number;
  gpuHours: ReadonlyMap<string, number>;
  /** null: nothing has a price. */
  cost: number | null;
}

/** Lines of one owner, one project or both added up: the dearest first, without prices those with most core hours. */
export function shares(lines: UsageLine[], grouping: Grouping): Share[] {
  const found = new Map<string, Share>();
  for (const line of lines) {
    const owner = grouping === "project" ? null : line.owner;
    const project = grouping === "owner" ? null : line.project;
    const key = JSON.stringify([owner, project]);
    const before = found.get(key);
    const gpuHours = new Map(before?.gpuHours);
    if (line.gpu_hours > 0) {
      const type = line.gpu_type ?? "GPU";
      gpuHours.set(type, (gpuHours.get(type) ?? 0) + line.gpu_hours);
    }
    found.set(key, {
      owner,
      project,
      workerHours: (before?.workerHours ?? 0) + line.worker_hours,
      coreHours: (before?.coreHours ?? 0) + line.core_hours,
      gpuHours,
      cost: line.cost === null ? null : (before?.cost ?? 0) + line.cost,
    });
  }
  const weight = (share: Share) => share.cost ?? share.coreHours;
  return [...found.values()].sort((one, other) => weight(other) - weight(one));
}

/** `2026-11` and the months before it, newest first. */
export function monthsUntil(last: string): string[] {
  const [year = 0, month = 1] = last.split("-").map(Number);
  return Array.from({ length: MONTHS }, (_, back) => {
    const first = new Date(Date.UTC(year, month - 1 - back, 1));
    return first.toISOString().slice(0, 7);
  });
}

function monthWords(month: string): string {
  const first = new Date(`${month}-01T00:00:00Z`);
  return first.toLocaleDateString("en-GB", { month: "long", year: "numeric", timeZone: "UTC" });
}

function hours(value: number): string {
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(2) : count(value);
}

function money(value: number | null): string {
  return value === null ? UNKNOWN : value.toFixed(2).replace(/\B(?=(\d{3})+\.)/g, " ");
}

export function UsageOfMonth() {
  const [query, choose] = useQuery();
  const now = new Date().toISOString().slice(0, 7);
  const month = /^\d{4}-(0[1-9]|1[0-2])$/.test(query.get("month") ?? "") ? (query.get("month") ?? now) : now;
  const asked = query.get("by");
  const grouping: Grouping = asked === "owner" || asked === "project" ? asked : "both";
  const [found] = useAnswer<Usage>(`/v1/usage?month=${month}`);
  const months = monthsUntil(now);
  return (
    <article aria-labelledby="usage">
      <h1 id="usage">Usage in {monthWords(month)}</h1>
      <div class="row">
        <label class="which">
          Month{" "}
          <select value={month} onChange={(event) => choose({ month: event.currentTarget.value })}>
            {[...(months.includes(month) ? [] : [month]), ...months].map((each) => (
              <option key={each} value={each}>
                {monthWords(each)}
              </option>
            ))}
          </select>
        </label>
        <div class="choice" role="group" aria-label="Added up by">
          {(Object.keys(GROUPINGS) as Grouping[]).map((each) => (
            <button
              key={each}
              type="button"
              aria-pressed={grouping === each}
              onClick={() => choose({ by: each === "both" ? null : each })}
            >
              by {GROUPINGS[each]}
            </button>
          ))}
        </div>
        {found && found.month === month && found.lines.length > 0 && (
          <a class="button file" href={fileOf(found)} download={`optimus-usage-${month}.csv`}>
            CSV
          </a>
        )}
      </div>
      {found?.month === month ? (
        <Shares usage={found} grouping={grouping} />
      ) : (
        <p class="quiet empty">{found === null ? "Loading …" : "Asking …"}</p>
      )}
    </article>
  );
}

function Shares({ usage, grouping }: { usage: Usage; grouping: Grouping }) {
  const rows = useMemo(() => shares(usage.lines, grouping), [usage, grouping]);
  const { shown, page, turn } = usePages(rows);
  const types = columnsOf(rows);
  const isPriced = usage.total.cost !== null;
  if (!rows.length) return <p class="quiet empty">No job that you may read was given anything in this month.</p>;
  const weight = (row: Pick<Share, "cost" | "coreHours">) => row.cost ?? row.coreHours;
  const all = weight({ cost: usage.total.cost, coreHours: usage.total.core_hours });
  return (
    <>
      <p class="quiet">
        What jobs were given until{" "}
        {new Date(usage.until).toLocaleDateString("en-GB", { day: "numeric", month: "long" })}, {clock(usage.until)},
        used or not; deleted jobs count, too.{" "}
        {isPriced ? "At the prices that the service is set to now." : "Nothing has a price here."}
      </p>
      <Wide label="Who used how much">
        <table class="places usage">
          <thead>
            <tr>
              {grouping !== "project" && <th scope="col">owner</th>}
              {grouping !== "owner" && <th scope="col">project</th>}
              <th scope="col">part</th>
              <th scope="col" class="figure">
                worker hours
              </th>
              {types.map((type) => (
                <th key={type} scope="col" class="figure">
                  {type} hours
                </th>
              ))}
              <th scope="col" class="figure">
                core hours
              </th>
              {isPriced && (
                <th scope="col" class="figure">
                  cost
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => (
              <tr key={`${row.owner} ${row.project}`}>
                {grouping !== "project" && <Who owner={row.owner} />}
                {grouping !== "owner" && <Where project={row.project ?? ""} isHead={grouping === "project"} />}
                <td>
                  <meter min={0} max={Math.max(all, 1e-9)} value={weight(row)} aria-label={`part of ${nameOf(row)}`} />
                </td>
                <td class="figure">{hours(row.workerHours)}</td>
                {types.map((type) => (
                  <td key={type} class="figure">
                    {hours(gpuHours(row, type, types))}
                  </td>
                ))}
                <td class="figure">{hours(row.coreHours)}</td>
                {isPriced && <td class="figure">{money(row.cost)}</td>}
              </tr>
            ))}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row" colSpan={grouping === "both" ? 3 : 2}>
                in all
              </th>
              <td class="figure">{hours(usage.total.worker_hours)}</td>
              {types.map((type) => (
                <td key={type} class="figure">
                  {hours(rows.reduce((sum, row) => sum + gpuHours(row, type, types), 0))}
                </td>
              ))}
              <td class="figure">{hours(usage.total.core_hours)}</td>
              {isPriced && <td class="figure">{money(usage.total.cost)}</td>}
            </tr>
          </tfoot>
        </table>
      </Wide>
      <Pages of="the usage" total={rows.length} page={page} turn={turn} />
    </>
  );
}

function nameOf({ owner, project }: Share): string {
  return [owner, project].filter(Boolean).join(", ") || "jobs without an owner";
}

function Who({ owner }: { owner: string | null }) {
  return (
    <th scope="row">
      {owner === null ? <span class="quiet">no owner</span> : <a href={addressOf("#/", { owner })}>{owner}</a>}
    </th>
  );
}

function Where({ project, isHead }: { project: string; isHead: boolean }) {
  const link = <a href={addressOf("#/", { project })}>{project}</a>;
  return isHead ? <th scope="row">{link}</th> : <td>{link}</td>;
}

/** The types that were used most, and one column for the others. */
function columnsOf(rows: Share[]): string[] {
  const sums = new Map<string, number>();
  for (const row of rows) for (const [type, used] of row.gpuHours) sums.set(type, (sums.get(type) ?? 0) + used);
  const sorted = [...sums].sort(([, one], [, other]) => other - one).map(([type]) => type);
  return sorted.length > MOST_TYPES ? [...sorted.slice(0, MOST_TYPES - 1), OTHER] : sorted;
}

function gpuHours(row: Share, type: string, types: string[]): number {
  if (type !== OTHER) return row.gpuHours.get(type) ?? 0;
  return [...row.gpuHours].reduce((sum, [each, used]) => (types.includes(each) ? sum : sum + used), 0);
}

/** The lines as the service tells them, to four decimals, for a spreadsheet. */
export function csvOf(month: string, lines: UsageLine[]): string {
  const head = ["owner", "project", "gpu_type", "worker_hours", "core_hours", "gpu_hours", "cost"] as const;
  const rows = lines.map((line) => [month, ...head.map((name) => cell(line[name]))].join(","));
  return [["month", ...head].join(","), ...rows].join("\r\n") + "\r\n";
}

function cell(value: string | number | null): string {
  const text = String(typeof value === "number" ? Math.round(value * 1e4) / 1e4 : (value ?? ""));
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function fileOf({ month, lines }: Usage): string {
  return `data:text/csv;charset=utf-8,${encodeURIComponent(csvOf(month, lines))}`;
}
