// uPlot drawn into a figure: colours from the style sheet, a size that follows the page, words for those who cannot see it,
// and the values at a place, read by pointer or by keyboard.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Eleven colours that can be told apart in light and dark; the last is for all the others. */
export function seriesColour(index: number): string {
  return colour(`series-${index}`);
}

/** What is to be read at one place of a picture. */
export interface Reading {
  at: string;
  values: [string, string][];
}

interface Props {
  title: string;
  /** What the picture says, in a sentence. */
  summary: string;
  data: uPlot.AlignedData;
  options: (width: number) => Omit<uPlot.Options, "width" | "height">;
  /** What stands at place `index` of the data; null: nothing. */
  read: (index: number) => Reading | null;
  height?: number;
  /** Changes when the series themselves change, not only their data. */
  shape: string;
  children?: ComponentChildren;
}

export function Chart({ title, summary, data, options, read, shape, height = 220, children }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [index, setIndex] = useState<number | null>(null);
  /** Where the values are read: a picture that is made anew goes on reading there. */
  const left = useRef(-10);
  const theme = useTheme();
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const made = options(element.clientWidth);
    const noted = (it: uPlot) => {
      left.current = it.cursor.left ?? -10;
      setIndex(it.cursor.idx ?? null);
    };
    plot.current = new uPlot(
      {
        padding: [8, 24, 0, 0],
        legend: { show: false },
        ...made,
        cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
        hooks: { ...made.hooks, setCursor: [noted] },
        width: element.clientWidth,
        height,
      },
      data,
      element,
    );
    if (left.current >= 0) plot.current.setCursor({ left: left.current, top: 0 });
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, theme, height]);
  useEffect(() => plot.current?.setData(data), [data]);
  const last = data[0].length - 1;
  const reading = index === null || index > last ? null : read(index);
  const words = reading ? `${reading.at}: ${reading.values.map((pair) => pair.join(" ")).join(", ")}` : "";
  const go = (to: number) => {
    setIndex(to);
    plot.current?.setCursor({ left: plot.current.valToPos(data[0][to] ?? 0, "x"), top: 0 });
  };
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} class="plot" role="img" aria-label={`${title}. ${summary}`} />
      <input
        type="range"
        class="unseen"
        min={0}
        max={Math.max(last, 0)}
        value={Math.min(index ?? last, last)}
        aria-label={`Values of ${title}`}
        aria-valuetext={words || "none: use the arrow keys"}
        onInput={(event) => go(Number(event.currentTarget.value))}
        onFocus={() => go(Math.min(index ?? last, last))}
        onBlur={() => plot.current?.setCursor({ left: -10, top: -10 })}
      />
      <p class="reading">
        {reading && (
          <>
            <strong>{reading.at}</strong>
            {reading.values.map(([name, value]) => (
              <span key={name}>
                {name} <b>{value}</b>
              </span>
            ))}
          </>
        )}
      </p>
      {children}
    </figure>
  );
}

function useTheme(): string {
  // A chart's colours are pixels: a new theme is a new chart.
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  return `${document.documentElement.dataset.theme ?? "auto"}-${query.matches}`;
}

/** Times of day on 24 hours, with the date where a new one begins. */
function times(_plot: uPlot, moments: number[]): string[] {
  let day = "";
  return moments.map((each) => {
    const date = new Date(each * 1000);
    const today = date.toLocaleDateString([], { day: "numeric", month: "short" });
    const isNew = day !== "" && today !== day;
    day = today;
    const spans = (moments[moments.length - 1] ?? 0) - (moments[0] ?? 0);
    if (isNew || spans > 172_800) return today;
    return date.toLocaleTimeString([], {
      hour: "2-digit",
      minute: "2-digit",
      hourCycle: "h23",
      ...(spans < 240 || moments.some((moment) => moment % 60 !== 0) ? { second: "2-digit" } : {}),
    });
  });
}

/** Distances between ticks of a time axis: whole seconds at least, as its words have no parts of them. */
const TIMES = [1, 5, 10, 15, 30].flatMap((number) => [number, 60 * number]);
const LONG = [1, 2, 3, 4, 6, 8, 12, 24, 48, 96, 168, 336, 720, 1440, 8760].map((hours) => 3600 * hours);

export const timeAxis: Partial<uPlot.Axis> = {
  values: times,
  space: 60,
  incrs: [...TIMES, ...LONG].sort((one, other) => one - other),
};

/** Distances between ticks of what is counted in whole numbers. */
export const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

/** The numbers at the ticks of an axis, small and large ones by powers of ten; null: a tick without one. */
export function numbers(_plot: uPlot | null, ticks: (number | null)[]): string[] {
  return ticks.map((tick) => {
    if (tick === null) return "";
    const [size, exact] = [Math.abs(tick), Number(tick.toPrecision(9))]; // 0.30000000000000004 is 0.3
    if (size !== 0 && (size < 1e-4 || size >= 1e6)) return exact.toExponential();
    return exact.toLocaleString([], { maximumFractionDigits: 9 });
  });
}

export function axes(over: { x?: Partial<uPlot.Axis>; y?: Partial<uPlot.Axis> } = {}): uPlot.Axis[] {
  const shared = {
    stroke: colour("muted"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { stroke: colour("grid"), width: 1, size: 4 },
  };
  return [
    { ...shared, size: 32, ...over.x },
    { ...shared, size: 52, values: numbers, ...over.y },
  ];
}

/** Rows that lie on each other: row i becomes the sum of itself and all below. */
export function stacked(rows: number[][]): number[][] {
  const sums: number[][] = [];
  for (const row of rows) {
    const below = sums[sums.length - 1];
    sums.push(row.map((value, index) => value + (below?.[index] ?? 0)));
  }
  return sums;
}

const SCALE = "optimus-scale";

/** Whether vertical scales are logarithmic, and what changes that; kept until it is changed again. */
export function useLogarithmic(): [boolean, (wanted: boolean) => void] {
  const [logarithmic, set] = useState(localStorage.getItem(SCALE) === "logarithmic");
  return [
    logarithmic,
    (wanted) => {
      localStorage.setItem(SCALE, wanted ? "logarithmic" : "linear");
      set(wanted);
    },
  ];
}

/** Which has no logarithm is not drawn. */
export function positive(values: (number | null)[]): (number | null)[] {
  return values.map((value) => (value !== null && value > 0 ? value : null));
}

/** A logarithmic scale that is not wider than its data. */
export const logScale: uPlot.Scale = {
  distr: 3,
  range: (_plot, low, high) => [low > 0 ? low * 0.9 : 0.1, high > 0 ? high * 1.1 : 1],
};

/** Distances between ticks of seconds: what clocks count in. */
export const SPANS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400, 172_800, 604_800];

/** A table that may be wider than the page: it scrolls by itself, by keyboard too. */
export function Wide({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="table scrolls" role="group" aria-label={label} tabIndex={0}>
      {children}
    </div>
  );
}

const MOST_ROWS = 50;

interface AsTableProps {
  columns: string[];
  rows: string[][];
  /** Whether it may be wider than the page. */
  scrolls?: boolean;
}

/** A picture's data for those who want figures: at most fifty rows, evenly chosen, the last among them. */
export function AsTable({ columns, rows, scrolls = false }: AsTableProps) {
  const every = Math.max(1, Math.ceil(rows.length / MOST_ROWS));
  const shown = rows.filter((_, index) => (rows.length - 1 - index) % every === 0);
  const table = (
    <table>
      <thead>
        <tr>
          {columns.map((name) => (
            <th scope="col" class="figure">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {shown.map((row) => (
          <tr>
            {row.map((cell) => (
              <td class="figure">{cell}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
  return (
    <details>
      <summary>As a table</summary>
      {scrolls ? <Wide label="Values of the picture">{table}</Wide> : <div class="table">{table}</div>}
    </details>
  );
}
