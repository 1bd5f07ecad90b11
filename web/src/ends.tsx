// How the predicted end moved over a job's life, with its interval, beside what came.
import { useMemo } from "preact/hooks";
import type uPlot from "uplot";
import type { Job, Predictions } from "./api";
import { AsTable, axes, Chart, colour, SPANS, timeAxis } from "./charts";
import { clock, duration } from "./words";

/** Fewer predictions are no history. */
const LEAST = 2;

/** Seconds from submission to the end that is predicted. One that was cancelled, or failed, tells nothing of that. */
function tookOf(job: Job): number | null {
  return job.state === "succeeded" ? job.jct_seconds : null;
}

/** Moments, then seconds from submission to the end: likeliest, low, high, and what came. A gap where none was told, as
 * while it hung. */
function predictedEnds(history: Predictions["history"], job: Job) {
  const begun = Date.parse(job.created_at) / 1000;
  const first = history.findIndex(({ remaining_seconds: left }) => left);
  const told = (first < 0 ? [] : history.slice(first)).map(({ at, remaining_seconds: left }) => ({
    at: Date.parse(at) / 1000,
    left,
  }));
  const columns = (["mean", "low", "high"] as const).map((part) =>
    told.map(({ at, left }) => {
      const seconds = left?.[part] ?? null;
      return seconds === null ? null : at - begun + seconds;
    }),
  );
  return [told.map(({ at }) => at), ...columns, told.map(() => tookOf(job))] as uPlot.AlignedData;
}

export function Ends({ job, history }: { job: Job; history: Predictions["history"] }) {
  const took = tookOf(job);
  const data = useMemo(() => predictedEnds(history, job), [history, took]);
  const [at, means, lows, highs] = data;
  const known = Array.from(means ?? []).filter((each) => each !== null);
  if (known.length < LEAST || !means || !lows || !highs) return null;
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(high * 1.05, 1)] } },
    axes: axes({ x: timeAxis, y: { incrs: SPANS, values: (_plot, ticks) => ticks.map(duration), size: 72 } }),
    bands: [{ series: [3, 2], fill: colour("band") }],
    series: [
      {},
      { stroke: colour("accent"), width: 2, points: { show: false } },
      { stroke: "transparent", points: { show: false } },
      { stroke: "transparent", points: { show: false } },
      { stroke: colour("end"), width: 2, dash: [6, 3], points: { show: false } },
    ],
  });
  const row = (index: number) => [means, lows, highs].map((values) => duration(values[index]));
  const came = took === null ? [] : [["came", duration(took)] as [string, string]];
  const read = (index: number) => {
    const [mean = "", low = "", high = ""] = row(index);
    const values: [string, string][] = [["predicted", mean], ["80 %", `${low} – ${high}`], ...came];
    return { at: clock((at[index] ?? 0) * 1000), values };
  };
  const gap = known.length < at.length ? " Where the line is broken, its end could not be said." : "";
  const end = came.length ? ` It took ${duration(took)}.` : "";
  return (
    <section aria-labelledby="ends">
      <h2 id="ends">How the predicted end moved</h2>
      <Chart
        title="From submission to the end, predicted at the size that it was given at each moment"
        summary={`First ${duration(known[0])}, last ${duration(known[known.length - 1])}.${gap}${end}`}
        data={data}
        options={options}
        read={read}
        shape={String(came.length)}
        height={180}
      >
        <ul class="legend">
          <li>
            <span class="swatch accent" />
            predicted
          </li>
          <li>
            <span class="swatch band" />
            80 % interval
          </li>
          {came.length > 0 && (
            <li>
              <span class="swatch end" />
              what came
            </li>
          )}
        </ul>
        <AsTable
          columns={["when", "predicted", "at least", "at most"]}
          rows={Array.from(at, (moment, index) => [clock(moment * 1000), ...row(index)])}
        />
      </Chart>
    </section>
  );
}
