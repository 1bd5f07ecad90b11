// uPlot drawn into a figure: colours from the style sheet, a size that follows the page, words for those who cannot see it.
import { useEffect, useRef } from "preact/hooks";
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

interface Props {
  title: string;
  /** What the picture says, in a sentence. */
  summary: string;
  data: uPlot.AlignedData;
  options: (width: number) => Omit<uPlot.Options, "width" | "height">;
  height?: number;
  /** Changes when the series themselves change, not only their data. */
  shape: string;
  children?: ComponentChildren;
}

export function Chart({ title, summary, data, options, shape, height = 220, children }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useTheme();
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const make = () =>
      new uPlot(
        { padding: [8, 24, 0, 0], ...options(element.clientWidth), width: element.clientWidth, height },
        data,
        element,
      );
    plot.current = make();
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, theme, height]);
  useEffect(() => plot.current?.setData(data), [data]);
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} class="plot" role="img" aria-label={`${title}. ${summary}`} />
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
      ...(spans < 240 ? { second: "2-digit" } : {}),
    });
  });
}

export const timeAxis: Partial<uPlot.Axis> = { values: times, space: 60 };

export function axes(over: { x?: Partial<uPlot.Axis>; y?: Partial<uPlot.Axis> } = {}): uPlot.Axis[] {
  const shared = {
    stroke: colour("muted"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { stroke: colour("grid"), width: 1, size: 4 },
  };
  return [
    { ...shared, size: 32, ...over.x },
    { ...shared, size: 52, ...over.y },
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
