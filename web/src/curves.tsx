// What a job measured, by step: its loss with the fitted curve, and the figures of its evaluations.
import { useMemo } from "preact/hooks";
import type uPlot from "uplot";
import type { EvaluationSeries, Job, Predictions } from "./api";
import { AsTable, axes, Chart, colour, logScale, positive, WHOLE, type Reading } from "./charts";
import { count, isLimit, number, stepsOf } from "./words";

/** Fewer measured points than this are drawn large. */
const FEW_POINTS = 20;

/** A picture goes on to the high end of the interval, but not further than so many times the likeliest end. */
const FURTHEST = 2;

/** Linear or logarithmic, for all curves by step. */
export function Scale({ logarithmic, choose }: { logarithmic: boolean; choose: (wanted: boolean) => void }) {
  return (
    <div class="row scale">
      <div class="choice" role="group" aria-label="Vertical scale of loss and figures">
        <button type="button" aria-pressed={!logarithmic} onClick={() => choose(false)}>
          linear
        </button>
        <button type="button" aria-pressed={logarithmic} onClick={() => choose(true)}>
          logarithmic
        </button>
      </div>
    </div>
  );
}

interface LossProps {
  job: Job;
  predictions: Predictions;
  logarithmic: boolean;
}

function whyNoCurve(losses: Predictions["losses"], hasEnded: boolean): string {
  if (losses.every((each) => each.loss === null)) return "no loss that is a number was told";
  return hasEnded ? "too few points for a curve" : "too few points for a curve so far";
}

export function Loss({ job, predictions, logarithmic }: LossProps) {
  const { losses, fitted, total_steps: total } = predictions;
  const data = useMemo(() => aligned(losses, fitted, logarithmic), [predictions, logarithmic]);
  if (!losses.length) return null;
  const end = total && !job.finished_at ? total : null;
  const reach = end ? Math.min(end.high ?? end.mean, FURTHEST * end.mean) : 0;
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    scales: {
      x: { time: false, range: (_plot, low, high) => [low, Math.max(high, reach)] },
      ...(logarithmic ? { y: logScale } : {}),
    },
    axes: axes({ x: { incrs: WHOLE } }),
    bands: [{ series: [4, 3], fill: colour("band") }],
    series: [
      {},
      {
        label: "measured",
        stroke: "transparent",
        points: { show: true, size: losses.length < FEW_POINTS ? 8 : 4, fill: colour("dot"), stroke: colour("dot") },
      },
      { label: "fitted", stroke: colour("accent"), width: 2, points: { show: false }, spanGaps: true },
      { label: "low", stroke: "transparent", points: { show: false }, spanGaps: true },
      { label: "high", stroke: "transparent", points: { show: false }, spanGaps: true },
    ],
    hooks: end ? { drawAxes: [(plot) => drawEnd(plot, end.low, end.mean, end.high)] } : {},
  });
  const last = losses[losses.length - 1];
  const read = (index: number): Reading => reading(data, index, ["measured", "fitted", "low", "high"]);
  return (
    <section aria-labelledby="loss">
      <h2 id="loss">Loss</h2>
      <Chart
        title="Loss by step"
        summary={`${losses.length} points, the newest ${number(last?.loss, 4)} at step ${count(last?.step ?? 0)}. ${end ? `The end is predicted at ${stepsOf(end)}.` : ""}`}
        data={data}
        options={options}
        read={read}
        shape={`${logarithmic}-${job.finished_at}-${end?.low}-${end?.mean}-${end?.high}-${losses.length < FEW_POINTS}`}
      >
        <ul class="legend">
          <li>
            <span class="swatch dot" />
            measured
          </li>
          {fitted.length > 0 && (
            <li>
              <span class="swatch accent" />
              fitted, on to the predicted end
            </li>
          )}
          {fitted.length > 0 && (
            <li>
              <span class="swatch band" />
              80 % interval of the fit
            </li>
          )}
          {fitted.length === 0 && <li class="quiet">{whyNoCurve(losses, job.finished_at !== null)}</li>}
          {end && (
            <li>
              <span class="swatch end" />
              {isLimit(end) ? "the end" : "80 % interval of the end"}: {stepsOf(end)}
            </li>
          )}
        </ul>
      </Chart>
    </section>
  );
}

/** Measured and fitted points on one axis of steps: step, measured, fitted, low, high. */
export function aligned(
  losses: Predictions["losses"],
  fitted: Predictions["fitted"],
  logarithmic = false,
): uPlot.AlignedData {
  const rows = new Map<number, (number | null)[]>();
  for (const { step, loss } of losses) rows.set(step, [loss, null, null, null]);
  for (const { step, loss, low, high } of fitted) rows.set(step, [rows.get(step)?.[0] ?? null, loss, low, high]);
  const steps = [...rows.keys()].sort((one, other) => one - other);
  const columns = [0, 1, 2, 3].map((part) => steps.map((step) => rows.get(step)?.[part] ?? null));
  return [steps, ...(logarithmic ? columns.map(positive) : columns)] as uPlot.AlignedData;
}

function drawEnd(plot: uPlot, low: number | null, mean: number, high: number | null): void {
  const { left: start, top, width, height } = plot.bbox;
  const place = (step: number) => Math.min(Math.max(plot.valToPos(step, "x", true), start), start + width);
  plot.ctx.save();
  plot.ctx.fillStyle = colour("end-band");
  const from = place(low ?? mean);
  plot.ctx.fillRect(from, top, Math.max(place(high ?? mean) - from, 1), height);
  plot.ctx.fillStyle = colour("end");
  plot.ctx.fillRect(place(mean), top, Math.max(1, devicePixelRatio), height);
  plot.ctx.restore();
}

function reading(data: uPlot.AlignedData, index: number, names: string[]): Reading {
  const values = names.flatMap((name, part): [string, string][] => {
    const value = data[part + 1]?.[index];
    return value == null ? [] : [[name, number(value, 4)]];
  });
  return { at: `step ${count(data[0][index] ?? 0)}`, values };
}

interface EvaluationsProps {
  series: EvaluationSeries[];
  metric: Predictions["metric"];
  logarithmic: boolean;
}

/** A picture for each figure of the evaluations: accuracies and losses have no scale in common. */
export function Evaluations({ series, metric, logarithmic }: EvaluationsProps) {
  if (!series.length) return null;
  return (
    <section aria-labelledby="evaluations">
      <h2 id="evaluations">Evaluations</h2>
      <div class="charts">
        {series.map((each) => (
          <Figure
            key={each.name}
            series={each}
            target={metric?.name === each.name ? metric : null}
            logarithmic={logarithmic}
          />
        ))}
      </div>
    </section>
  );
}

function Figure({
  series: { name, values },
  target,
  logarithmic,
}: {
  series: EvaluationSeries;
  target: Predictions["metric"];
  logarithmic: boolean;
}) {
  const data = useMemo(() => {
    const measured = values.map((each) => each.value);
    const goal = values.map(() => target?.target ?? null);
    const columns = logarithmic ? [positive(measured), positive(goal)] : [measured, goal];
    return [values.map((each) => each.step), ...columns] as uPlot.AlignedData;
  }, [values, target?.target, logarithmic]);
  const size = values.length < FEW_POINTS ? 7 : 4;
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    scales: { x: { time: false }, ...(logarithmic ? { y: logScale } : {}) },
    axes: axes({ x: { incrs: WHOLE } }),
    series: [
      {},
      { stroke: colour("accent"), width: 2, points: { show: true, size, fill: colour("accent") } },
      { stroke: colour("end"), width: 1.5, dash: [6, 3], points: { show: false } },
    ],
  });
  const [first, last] = [values[0], values[values.length - 1]];
  const best = [Math.min, Math.max].map((of) => number(of(...values.map((each) => each.value)), 4));
  return (
    <Chart
      title={name}
      summary={`${values.length} values, from ${number(first?.value, 4)} to ${number(last?.value, 4)} at step ${count(last?.step ?? 0)}; between ${best.join(" and ")}.${target ? ` The job ends at ${number(target.target, 4)}.` : ""}`}
      data={data}
      options={options}
      read={(index) => reading(data, index, ["value", "target"])}
      shape={`${logarithmic}-${size}`}
      height={160}
    >
      <p class="quiet figure-line">
        last <b>{number(last?.value, 4)}</b>, lowest {best[0]}, highest {best[1]}
        {target && `, target ${number(target.target, 4)}`}
      </p>
      <AsTable columns={["step", name]} rows={values.map((each) => [count(each.step), number(each.value, 4)])} />
    </Chart>
  );
}
