// Several jobs side by side: their curves over each other, what became of them, and which of their settings differ.
import { useEffect, useMemo, useState } from "preact/hooks";
import type uPlot from "uplot";
import { get, NeedsToken, Refused, type Curves, type Job, type MeasuredPoint } from "./api";
import { AsTable, axes, Chart, logScale, positive, seriesColour, SPANS, Wide, WHOLE, type Reading } from "./charts";
import { coloursOf } from "./colours";
import { Badge } from "./jobs";
import { useQuery } from "./route";
import { differing, type Setting } from "./settings";
import { MOST } from "./comparing";
import { count, counted, duration, epochOf, number, UNKNOWN } from "./words";

const REFRESH_MS = 5000;
const LOSS = "loss";
/** Figures of evaluations with a column of their own in the table of results. */
const MOST_FIGURES = 4;

type By = "step" | "epoch" | "time";

interface Compared {
  job: Job;
  curves: Curves;
  colour: number;
  /** Another job before it has the same colour. */
  dashed: boolean;
}

interface Found {
  job: Job;
  curves: Curves;
}

async function load(id: string, signal: AbortSignal): Promise<Found> {
  const base = `/v1/jobs/${encodeURIComponent(id)}`;
  const [job, curves] = await Promise.all([get<Job>(base, signal), get<Curves>(`${base}/curves`, signal)]);
  return { job, curves };
}

/** The jobs of these ids, asked again while they are active, and what is wrong with an id. */
function useFound(ids: string[], needsToken: () => void): [ReadonlyMap<string, Found>, ReadonlyMap<string, string>] {
  const [found, setFound] = useState<ReadonlyMap<string, Found>>(new Map());
  const [problems, setProblems] = useState<ReadonlyMap<string, string>>(new Map());
  useEffect(() => {
    const stop = new AbortController();
    const over = new Set<string>();
    const ask = async (id: string) => {
      try {
        const one = await load(id, stop.signal);
        if (one.job.finished_at) over.add(id);
        setFound((old) => new Map(old).set(one.job.id, one));
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof NeedsToken) return needsToken();
        if (!(error instanceof Refused) || error.status >= 500) return; // the stream says when the service is away
        over.add(id);
        setFound((old) => new Map([...old].filter(([each]) => each !== id)));
        setProblems((old) => new Map(old).set(id, error.message));
      }
    };
    const askAll = () => ids.filter((id) => !over.has(id)).forEach((id) => void ask(id));
    askAll();
    const timer = window.setInterval(askAll, REFRESH_MS);
    return () => {
      stop.abort();
      window.clearInterval(timer);
    };
  }, [ids.join()]);
  return [found, problems];
}

export function Compare({ needsToken }: { needsToken: () => void }) {
  const [query, choose] = useQuery();
  const named = [...new Set((query.get("jobs") ?? "").split(",").filter(Boolean))];
  const ids = named.slice(0, MOST);
  const [found, problems] = useFound(ids, needsToken);
  const colours = useMemo(() => coloursOf(ids, []), [ids.join()]);
  const taken = new Set<number>();
  const compared = ids.flatMap((id): Compared[] => {
    const one = found.get(id);
    const colour = colours.get(id) ?? 0;
    const dashed = taken.has(colour);
    taken.add(colour);
    return one ? [{ ...one, colour, dashed }] : [];
  });
  const drawn = ids.filter((id) => !problems.has(id)).length;
  const without = (id: string) => choose({ jobs: ids.filter((each) => each !== id).join(",") });
  return (
    <article aria-labelledby="compare">
      <p class="crumbs">
        <a href="#/">Cluster</a> / compare
      </p>
      <h1 id="compare">{drawn ? `${counted(drawn, "job")} compared` : "Compare jobs"}</h1>
      {named.length > MOST && (
        <p class="quiet">
          The address names {named.length}; the first {MOST} are shown.
        </p>
      )}
      {ids
        .filter((id) => problems.has(id))
        .map((id) => (
          <p key={id} role="alert" class="refused">
            {id}: {problems.get(id)}{" "}
            <button type="button" onClick={() => without(id)}>
              Leave it out
            </button>
          </p>
        ))}
      {ids.length === 0 && (
        <p class="empty quiet">
          Choose two or more jobs in <a href="#/">the list</a>, by the boxes before their names.
        </p>
      )}
      {compared.length > 0 && (
        <>
          <Overlaid compared={compared} query={query} choose={choose} without={without} />
          <Results compared={compared} />
          <Settings compared={compared} />
        </>
      )}
    </article>
  );
}

function Swatch({ colour, dashed }: Pick<Compared, "colour" | "dashed">) {
  return <span class={`swatch series-${colour} ${dashed ? "dashed" : ""}`} />;
}

interface OverlaidProps {
  compared: Compared[];
  query: URLSearchParams;
  choose: (changes: Record<string, string | null>) => void;
  without: (id: string) => void;
}

/** Curves over each other: which figure, over what, on which scale stands in the address. */
function Overlaid({ compared, query, choose, without }: OverlaidProps) {
  const by = byOf(query.get("by"));
  const logarithmic = query.get("scale") === "log";
  const figures = figuresOf(compared);
  const wanted = query.get("of") ?? LOSS;
  const figure = figures.includes(wanted) ? wanted : LOSS;
  return (
    <section aria-labelledby="curves">
      <div class="row">
        <h2 id="curves">Curves</h2>
        {figures.length > 1 && (
          <label class="which">
            of{" "}
            <select value={figure} onChange={(event) => choose({ of: event.currentTarget.value })}>
              {figures.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        )}
        <div class="choice" role="group" aria-label="Over what">
          {(["step", "epoch", "time"] as By[]).map((each) => (
            <button key={each} type="button" aria-pressed={by === each} onClick={() => choose({ by: each })}>
              by {each}
            </button>
          ))}
        </div>
        <div class="choice" role="group" aria-label="Vertical scale">
          <button type="button" aria-pressed={!logarithmic} onClick={() => choose({ scale: null })}>
            linear
          </button>
          <button type="button" aria-pressed={logarithmic} onClick={() => choose({ scale: "log" })}>
            logarithmic
          </button>
        </div>
      </div>
      <Picture compared={compared} figure={figure} by={by} logarithmic={logarithmic} without={without} />
    </section>
  );
}

function byOf(text: string | null): By {
  return text === "epoch" || text === "time" ? text : "step";
}

/** The loss, and what evaluations of any of the jobs gave. An evaluation's own figure "loss" is not told apart. */
function figuresOf(compared: Compared[]): string[] {
  const named = compared.flatMap(({ curves }) => curves.figures.map((each) => each.name));
  return [LOSS, ...[...new Set(named)].filter((name) => name !== LOSS).sort()];
}

function pointsOf(curves: Curves, figure: string): MeasuredPoint[] {
  return figure === LOSS ? curves.loss : (curves.figures.find((each) => each.name === figure)?.points ?? []);
}

type Place = [x: number, value: number | null];

/** A job's curve over steps, epochs, or seconds since its training began. */
export function placesOf({ job, curves }: Found, figure: string, by: By): Place[] {
  const began = job.started_at === null ? 0 : (Date.parse(job.started_at) - Date.parse(job.created_at)) / 1000;
  const x = (point: MeasuredPoint): number | null => {
    if (by === "step") return point.step;
    if (by === "epoch") return point.epoch;
    return point.at_seconds === null ? null : Math.max(point.at_seconds - began, 0);
  };
  const found = pointsOf(curves, figure).flatMap((point): Place[] => {
    const place = x(point);
    return place === null ? [] : [[place, point.value]];
  });
  return found.sort(([one], [other]) => one - other);
}

/** A curve's value between its points; null before its first and after its last one. */
export function valueAt(places: Place[], x: number): number | null {
  const after = places.findIndex(([place]) => place >= x);
  const [next, last] = [places[after], places[after - 1]];
  if (!next) return null;
  if (next[0] === x || !last) return next[0] === x ? next[1] : null;
  if (next[1] === null || last[1] === null) return null;
  return last[1] + ((next[1] - last[1]) * (x - last[0])) / (next[0] - last[0]);
}

interface PictureProps {
  compared: Compared[];
  figure: string;
  by: By;
  logarithmic: boolean;
  without: (id: string) => void;
}

function Picture({ compared, figure, by, logarithmic, without }: PictureProps) {
  const curves = useMemo(() => compared.map((each) => placesOf(each, figure, by)), [compared, figure, by]);
  const data = useMemo(() => over(curves, logarithmic), [curves, logarithmic]);
  const drawn = compared.filter((_, index) => curves[index]?.length);
  const missing = compared.filter((_, index) => !curves[index]?.length);
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    scales: { x: { time: false }, ...(logarithmic ? { y: logScale } : {}) },
    axes: axes({ x: axisOf(by) }),
    series: [
      {},
      ...compared.map(({ colour, dashed }, index) => ({
        stroke: seriesColour(colour),
        width: 2,
        spanGaps: true,
        points: { show: (curves[index]?.length ?? 0) < 3, size: 7, fill: seriesColour(colour) },
        ...(dashed ? { dash: [6, 4] } : {}),
      })),
    ],
  });
  const at = (x: number) => {
    if (by === "time") return duration(x);
    return by === "step" ? `step ${count(x)}` : `epoch ${number(x)}`;
  };
  const read = (index: number): Reading => {
    const x = data[0][index] ?? 0;
    const values = compared.flatMap(({ job }, each): [string, string][] => {
      const value = valueAt(curves[each] ?? [], x);
      return value === null ? [] : [[job.name, number(value, 4)]];
    });
    return { at: at(x), values };
  };
  const lasts = drawn.map((each) => `${each.job.name} ${number(lastOf(pointsOf(each.curves, figure)), 4)}`);
  return (
    <Chart
      title={`${figure} by ${by === "time" ? "time since training began" : by}`}
      summary={`${counted(drawn.length, "curve")}. The newest values: ${lasts.join(", ") || "none"}.`}
      data={data}
      options={options}
      read={read}
      shape={[by, figure, logarithmic, ...compared.map(({ job, colour }) => `${job.id} ${colour}`)].join()}
      height={320}
    >
      <ul class="legend compared">
        {compared.map(({ job, colour, dashed }) => (
          <li key={job.id}>
            <Swatch colour={colour} dashed={dashed} />
            <a href={`#/jobs/${job.id}`}>{job.name}</a>
            <button
              type="button"
              class="out"
              aria-label={`Take ${job.name} (${job.id}) out`}
              onClick={() => without(job.id)}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
      {missing.length > 0 && (
        <p class="quiet figure-line">
          Not drawn: {missing.map(({ job }) => job.name).join(", ")}. {whyMissing(missing, figure, by)}
        </p>
      )}
      <AsTable
        scrolls
        columns={[by, ...compared.map(({ job }) => job.name)]}
        rows={Array.from(data[0], (x) => [
          by === "step" ? count(x) : at(x),
          ...curves.map((places) => number(valueAt(places, x), 4)),
        ])}
      />
    </Chart>
  );
}

function whyMissing(missing: Compared[], figure: string, by: By): string {
  const measured = missing.some(({ curves }) => pointsOf(curves, figure).length > 0);
  if (!measured) return `Nothing of ${figure} has been measured.`;
  return by === "epoch" ? "It is not known how many steps make an epoch." : "When its steps were made is not known.";
}

function axisOf(by: By): Partial<uPlot.Axis> {
  if (by === "time") return { incrs: SPANS, values: (_plot, ticks) => ticks.map(duration), space: 70 };
  return by === "step" ? { incrs: WHOLE } : {};
}

/** Curves with places of their own on one axis. */
function over(curves: Place[][], logarithmic: boolean): uPlot.AlignedData {
  const xs = [...new Set(curves.flatMap((places) => places.map(([x]) => x)))].sort((one, other) => one - other);
  const columns = curves.map((places) => {
    const values = new Map(places);
    const column = xs.map((x) => values.get(x) ?? null);
    return logarithmic ? positive(column) : column;
  });
  return [xs, ...columns] as uPlot.AlignedData;
}

function lastOf(points: MeasuredPoint[]): number | null {
  return points[points.length - 1]?.value ?? null;
}

function lowestOf(points: MeasuredPoint[], last: number | null): number | null {
  const values = [last, ...points.map(({ value }) => value)].filter((value) => value !== null);
  return values.length ? Math.min(...values) : null;
}

function secondsBetween(from: string | null, to: string | null): number | null {
  return from === null ? null : ((to === null ? Date.now() : Date.parse(to)) - Date.parse(from)) / 1000;
}

function Results({ compared }: { compared: Compared[] }) {
  const figures = figuresOf(compared)
    .filter((name) => name !== LOSS)
    .slice(0, MOST_FIGURES);
  return (
    <section aria-labelledby="results">
      <h2 id="results">Results</h2>
      <Wide label="Results of each job">
        <table class="results">
          <thead>
            <tr>
              <th scope="col">job</th>
              <th scope="col">state</th>
              {[
                "loss",
                "lowest",
                ...figures,
                "steps",
                "epochs",
                "until its start",
                "from start to end",
                "changes of size",
              ].map((name) => (
                <th key={name} scope="col" class="figure">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {compared.map(({ job, curves, colour, dashed }) => (
              <tr key={job.id}>
                <th scope="row">
                  <Swatch colour={colour} dashed={dashed} />
                  <a href={`#/jobs/${job.id}`}>{job.name}</a>
                  <span class="under">{[job.owner, job.id].filter(Boolean).join(" · ")}</span>
                </th>
                <td>
                  <Badge job={{ ...job, wanted_workers: job.wanted.workers, workers: job.running.workers }} />
                </td>
                <td class="figure">{number(job.result?.final_loss ?? job.loss, 4)}</td>
                <td class="figure">{number(lowestOf(curves.loss, job.result?.final_loss ?? job.loss), 4)}</td>
                {figures.map((name) => (
                  <td key={name} class="figure">
                    {number(job.result?.metrics?.[name] ?? lastOf(pointsOf(curves, name)), 4)}
                  </td>
                ))}
                <td class="figure">{count(job.step)}</td>
                <td class="figure">{epochOf(job)}</td>
                <td class="figure">{duration(secondsBetween(job.created_at, job.started_at ?? job.finished_at))}</td>
                <td class="figure">{duration(secondsBetween(job.started_at, job.finished_at))}</td>
                <td class="figure">{job.rescales}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
    </section>
  );
}

function Settings({ compared }: { compared: Compared[] }) {
  const rows = differing(compared.map(({ job }) => job.spec as unknown as Setting));
  return (
    <section aria-labelledby="settings">
      <h2 id="settings">Settings that differ</h2>
      {rows.length === 0 ? (
        <p class="quiet">{compared.length > 1 ? "None does, but for the name." : "There is only one job."}</p>
      ) : (
        <Wide label="Settings that differ">
          <table class="settings">
            <thead>
              <tr>
                <th scope="col">setting</th>
                {compared.map(({ job, colour, dashed }) => (
                  <th key={job.id} scope="col">
                    <Swatch colour={colour} dashed={dashed} />
                    {job.name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map(({ name, values }) => (
                <tr key={name}>
                  <th scope="row">
                    <code>{name}</code>
                  </th>
                  {values.map((value, index) => (
                    <td key={compared[index]?.job.id}>{value ?? <span class="quiet">{UNKNOWN}</span>}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
    </section>
  );
}
