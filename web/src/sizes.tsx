// What a job had over its life: workers and servers of each membership.
import { useMemo } from "preact/hooks";
import type uPlot from "uplot";
import type { AllocationPoint, Job, JobEvent } from "./api";
import { axes, Chart, colour, seriesColour, timeAxis, WHOLE } from "./charts";
import { colourOf } from "./colours";
import { ago, clock, count, lost, number, size, UNKNOWN } from "./words";

/** Of a job whose global batch is the scheduler's choice. */
export function inBatches(had: AllocationPoint | undefined): string {
  return had?.global_batch == null ? "" : `, ${count(had.global_batch)} examples a step`;
}

const CAUSES: Record<string, string> = {
  start: "start",
  rescale: "change of size",
  replaced: "tasks replaced",
  worker_lost: "a worker was lost",
  server_lost: "a server was lost",
  coordinator_restart: "its coordinator came back",
  resume: "goes on",
  pause: "paused",
  batch: "another size of the global batch",
};

export function Allocations({
  allocations,
  events,
  job,
  now,
}: {
  allocations: AllocationPoint[];
  events: JobEvent[];
  job: Job;
  now: number;
}) {
  const end = Math.round((job.finished_at ? Date.parse(job.finished_at) : now) / 10_000) * 10;
  const data = useMemo(() => steps(allocations, job, end, ended(events)), [allocations, events, end]);
  if (!allocations.length) return null;
  const options = (): Omit<uPlot.Options, "width" | "height"> => ({
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(high + 1, 3)] } },
    axes: axes({ x: timeAxis, y: { incrs: WHOLE, space: 22 } }),
    series: [
      {},
      { stroke: seriesColour(colourOf(job.id)), width: 2, points: { show: false } },
      { stroke: colour("muted"), width: 2, dash: [6, 3], points: { show: false } },
    ],
  });
  return (
    <section aria-labelledby="allocations">
      <h2 id="allocations">What it had</h2>
      <Chart
        title="Workers and servers"
        summary={`${allocations.length} memberships.`}
        data={data}
        options={options}
        read={(index) => ({
          at: clock((data[0][index] ?? 0) * 1000),
          values: [
            ["workers", String(data[1]?.[index] ?? 0)],
            ["servers", String(data[2]?.[index] ?? 0)],
          ],
        })}
        shape=""
        height={160}
      >
        <ul class="legend">
          <li>
            <span class={`swatch series-${colourOf(job.id)}`} />
            workers
          </li>
          <li>
            <span class="swatch line" />
            servers
          </li>
        </ul>
      </Chart>
      <details>
        <summary>As a table</summary>
        <div class="table">
          <table>
            <thead>
              <tr>
                <th scope="col">when</th>
                <th scope="col">had</th>
                <th scope="col">because</th>
                <th scope="col" class="figure">
                  stood still
                </th>
                <th scope="col" class="figure wide">
                  from step
                </th>
              </tr>
            </thead>
            <tbody>
              {[...allocations].reverse().map((each) => (
                <tr>
                  <td>{ago(each.at, now)}</td>
                  <td>
                    {size(each.workers, each.servers)}
                    {inBatches(each)}
                  </td>
                  <td>
                    {CAUSES[each.cause] ?? each.cause}
                    {losing(each)}
                  </td>
                  <td class="figure" title={parts(each)}>
                    {each.pause_seconds == null ? UNKNOWN : `${atMost(each)}${number(each.pause_seconds)} s`}
                  </td>
                  <td class="figure wide">{count(each.step)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </section>
  );
}

function losing(each: AllocationPoint): string {
  const words = lost(each.lost_steps, each.lost_seconds);
  if (!words || !each.pause_parts?.told_every || !each.lost_steps) return words && `; lost: ${words}`;
  // After an error or a kill nobody knows until when it made steps that it did not tell.
  const isLeast = each.workers > 0 && each.pause_parts.stop_seconds == null;
  return `; lost: ${isLeast ? "at least" : "about"} ${words}`;
}

/** Of a script that tells only some of its steps, it is not known when it made the others. */
function atMost(each: AllocationPoint): string {
  return each.pause_parts?.told_every && each.pause_seconds ? "at most " : "";
}

/** A stair: each size from when it was formed until the next. */
export function steps(
  allocations: Pick<AllocationPoint, "at" | "workers" | "servers">[],
  job: Pick<Job, "created_at">,
  end: number,
  errors: string[] = [],
): uPlot.AlignedData {
  const at: number[] = [Date.parse(job.created_at) / 1000];
  const workers: number[] = [0];
  const servers: number[] = [0];
  const nothing = errors.map((moment) => ({ at: moment, workers: 0, servers: 0 }));
  const points = [...allocations, ...nothing].sort((one, other) => Date.parse(one.at) - Date.parse(other.at));
  for (const each of points) {
    const moment = Date.parse(each.at) / 1000;
    at.push(moment, moment + 0.001);
    workers.push(workers[workers.length - 1] ?? 0, each.workers);
    servers.push(servers[servers.length - 1] ?? 0, each.servers);
  }
  const last = at[at.length - 1] ?? end;
  at.push(Math.max(end, last + 1));
  workers.push(workers[workers.length - 1] ?? 0);
  servers.push(servers[servers.length - 1] ?? 0);
  return [at, workers, servers];
}

/** When it lost what it had to an error or its end, after which it may go on: nobody is left then who would report that
 * the membership is over. */
export function ended(events: Pick<JobEvent, "type" | "at">[]): string[] {
  return events.filter((each) => ENDS.has(each.type)).map((each) => each.at);
}

const ENDS: ReadonlySet<string> = new Set(["RetryScheduled", "JobFailed", "JobCancelled"]);

/** What the pause of a script consists of: `save 0.3 s, stop 0.1 s, start 2 s`. */
export function parts(each: Pick<AllocationPoint, "pause_parts">): string | undefined {
  const told = Object.entries(each.pause_parts ?? {}).filter(
    ([name, seconds]) => name.endsWith("_seconds") && seconds != null,
  );
  return (
    told.map(([name, seconds]) => `${name.replace("_seconds", "")} ${number(seconds as number)} s`).join(", ") ||
    undefined
  );
}
