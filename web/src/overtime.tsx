// The cluster over time: who had how much of it, as areas on each other under the line of what open nodes have now: what there was is not kept.
import { useEffect, useMemo, useState } from "preact/hooks";
import uPlot from "uplot";
import { get, type ClusterHistory } from "./api";
import { axes, Chart, colour, seriesColour, stacked, timeAxis, type Reading } from "./charts";
import { OTHERS } from "./colours";
import { amount, clock, duration, number } from "./words";

const SPANS: [string, number][] = [
  ["15 min", 900],
  ["1 h", 3600],
  ["6 h", 21600],
  ["24 h", 86400],
  ["7 d", 604800],
];
const REFRESH_MS = 10_000;
/** Of the history that is drawn: a job that came a moment ago is more than a line. */
const LEAST_POINTS = 8;
const stairs = uPlot.paths.stepped?.({ align: 1 });

/** The shortest span in which all of `oldest` (a moment in milliseconds) can be seen; an hour at most, unless it is asked for. */
function longEnough(oldest: number): number {
  const age = (Date.now() - oldest) / 1000;
  return SPANS.map(([, value]) => value).find((value) => value >= age && value <= 3600) ?? 3600;
}

interface Props {
  oldest: number;
  colours: ReadonlyMap<string, number>;
  /** Told the ids of the jobs that have an area. */
  onDrawn: (ids: string[]) => void;
}

export function OverTime({ oldest, colours, onDrawn }: Props) {
  const [span, setSpan] = useState<number | null>(null);
  const seconds = span ?? longEnough(oldest);
  const [history, setHistory] = useState<ClusterHistory | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    const load = () =>
      get<ClusterHistory>(`/v1/cluster/history?seconds=${seconds}&points=160`, stop.signal).then(
        (found) => {
          setHistory(sinceFirst(found));
          onDrawn(found.series.map((each) => each.id));
        },
        () => undefined, // the stream says when the service is away
      );
    void load();
    const timer = window.setInterval(load, REFRESH_MS);
    return () => {
      stop.abort();
      window.clearInterval(timer);
    };
  }, [seconds]);
  return (
    <section aria-labelledby="over-time">
      <div class="row">
        <h2 id="over-time">Over time</h2>
        <div class="choice" role="group" aria-label="Time span">
          {SPANS.map(([name, value]) => (
            <button type="button" aria-pressed={seconds === value} onClick={() => setSpan(value)}>
              {name}
            </button>
          ))}
        </div>
      </div>
      {history ? <Areas history={history} colours={colours} /> : <p class="quiet">Loading …</p>}
    </section>
  );
}

/** The history without the time before the first job, of which there is nothing to draw. */
export function sinceFirst(history: ClusterHistory): ClusterHistory {
  const happened = (index: number) =>
    (history.training[index] ?? 0) + (history.waiting[index] ?? 0) > 0 ||
    history.series.some((each) => (each.held[index] ?? 0) > 0);
  const first = history.at.findIndex((_, index) => happened(index));
  const from = Math.min(Math.max(first - 1, 0), Math.max(history.at.length - LEAST_POINTS, 0));
  const kept = <Value,>(values: Value[]) => values.slice(from);
  return {
    ...history,
    at: kept(history.at),
    others: kept(history.others),
    training: kept(history.training),
    waiting: kept(history.waiting),
    series: history.series.map((each) => ({ ...each, held: kept(each.held) })),
  };
}

function Areas({ history, colours }: { history: ClusterHistory; colours: ReadonlyMap<string, number> }) {
  const colourOf = (id: string) => colours.get(id) ?? OTHERS;
  const hasOthers = history.others.some((value) => value > 0);
  const rows = [...(hasOthers ? [history.others] : []), ...[...history.series].reverse().map((each) => each.held)];
  const names = [...(hasOthers ? ["others"] : []), ...[...history.series].reverse().map((each) => each.name)];
  const indices = [...(hasOthers ? [OTHERS] : []), ...history.series.map((each) => colourOf(each.id)).reverse()];
  const sums = useMemo(() => stacked(rows), [history]);
  const capacity = history.at.map(() => history.capacity);
  // Drawn from the top of the stack down, each over the one before.
  const data = useMemo(() => [history.at, ...[...sums].reverse(), capacity] as uPlot.AlignedData, [history]);
  const unit = history.unit === "gpus" ? "GPUs" : "CPU cores";
  const now = history.at.length - 1;
  const apart = (history.at[1] ?? 0) - (history.at[0] ?? 0);
  const used = sums[sums.length - 1]?.[now] ?? 0;
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(high * 1.05, 1)] } },
    axes: axes({ x: timeAxis }),
    series: [
      {},
      ...[...indices].reverse().map((index) => ({
        fill: seriesColour(index),
        stroke: colour("surface"),
        width: 1,
        points: { show: false },
        ...(stairs ? { paths: stairs } : {}),
      })),
      { stroke: colour("muted"), width: 1.5, dash: [4, 4], points: { show: false } },
    ],
  });
  const read = (index: number): Reading => ({
    at: clock((history.at[index] ?? 0) * 1000),
    values: [
      ...names
        .map((name, row): [string, string] => [name, amount(rows[row]?.[index] ?? 0)])
        .filter(([, held]) => held !== "0")
        .reverse(),
      ["in all", amount(sums[sums.length - 1]?.[index] ?? 0)],
      ["waiting", amount(history.waiting[index] ?? 0)],
    ],
  });
  return (
    <Chart
      title={`${unit} by job`}
      summary={`Now ${amount(used)} in use; nodes that take tasks have ${amount(history.capacity)}. Shown from ${clock((history.at[0] ?? 0) * 1000)} to ${clock((history.at[now] ?? 0) * 1000)}, in means over ${duration(apart)}.`}
      data={data}
      options={options}
      read={read}
      shape={indices.join()}
      height={200}
    >
      <ul class="legend">
        {history.series.map((each) => (
          <li>
            <span class={`swatch series-${colourOf(each.id)}`} />
            <a href={`#/jobs/${each.id}`}>{each.name}</a>
          </li>
        ))}
        {hasOthers && (
          <li>
            <span class={`swatch series-${OTHERS}`} />
            others
          </li>
        )}
        <li>
          <span class="swatch line" />
          what nodes that take tasks have now
        </li>
      </ul>
      <details>
        <summary>As a table</summary>
        <table>
          <thead>
            <tr>
              <th scope="col">job</th>
              <th scope="col" class="figure">
                {unit} now
              </th>
              <th scope="col" class="figure">
                mean
              </th>
            </tr>
          </thead>
          <tbody>
            {names.map((name, row) => (
              <tr>
                <th scope="row">{name}</th>
                <td class="figure">{number(rows[row]?.[now])}</td>
                <td class="figure">
                  {number((rows[row] ?? []).reduce((sum, each) => sum + each, 0) / history.at.length)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </Chart>
  );
}
