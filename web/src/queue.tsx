// Who waits, in which order, why, and when each is expected to start: what `optimus queue` tells.
import { useEffect, useState } from "preact/hooks";
import { get, type Queue } from "./api";
import { useAnswer } from "./asking";
import { Wide } from "./charts";
import { Pages, usePages } from "./pages";
import { addressOf } from "./route";
import { ago, amount, count, counted, wait } from "./words";

/** The most that the service tells at once. */
const MOST = 200;
const PATH = `/v1/queue?limit=${MOST}`;

export function QueueOfJobs({ now }: { now: number }) {
  const [found] = useAnswer<Queue>(PATH);
  const { shown, page, turn } = usePages(found?.jobs ?? []);
  if (!found) return <p class="quiet empty">Loading …</p>;
  const { waiting, jobs, same_start_by: by } = found;
  const looked = jobs.find((job) => job.expected?.start_seconds)?.expected?.computed_at;
  return (
    <article aria-labelledby="queue">
      <p class="crumbs">
        <a href="#/">Cluster</a> / queue
      </p>
      <h1 id="queue">
        {waiting === 0 ? "Nobody waits" : `${counted(waiting, "job")} ${waiting === 1 ? "waits" : "wait"}`}
      </h1>
      <p class="quiet">
        The one that is expected to start first is at the top; those with the same start stand by {by}, after those that
        have waited so long that they go first.
        {looked && ` Starts are told by the look at the queue ${ago(looked, now)}.`} Each round decides anew: a smaller,
        shorter or more urgent job may start before those above it.
      </p>
      {jobs.length > 0 && (
        <Wide label="The queue">
          <table class="queue">
            <thead>
              <tr>
                <th scope="col" class="figure">
                  place
                </th>
                <th scope="col">job</th>
                <th scope="col">why it waits</th>
                <th scope="col">starts</th>
                <th scope="col" class="figure">
                  priority
                </th>
                <th scope="col" class="figure">
                  submitted
                </th>
              </tr>
            </thead>
            <tbody>
              {shown.map((job) => (
                <tr key={job.id}>
                  <td class="figure">{job.position}</td>
                  <th scope="row">
                    <a href={`#/jobs/${job.id}`}>{job.name}</a>
                    <span class="under">
                      {job.owner && (
                        <>
                          <a href={addressOf("#/", { owner: job.owner })}>{job.owner}</a> ·{" "}
                        </>
                      )}
                      {job.project}
                    </span>
                  </th>
                  <td>{job.why}</td>
                  <td>{wait(job.expected?.start_seconds)}</td>
                  <td class="figure">{amount(job.priority)}</td>
                  <td class="figure">{ago(job.submitted_at, now)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
      <Pages of="the queue" total={jobs.length} page={page} turn={turn} />
      {waiting > jobs.length && (
        <p class="quiet">{counted(waiting - jobs.length, "job")} more, of other projects or further behind.</p>
      )}
    </article>
  );
}

/** `3 of 7 in the queue`, of a job that waits; null: it is not known, or far behind. It is asked for with each `load`. */
export function usePlace(id: string, waits: boolean, load: object): string | null {
  const [place, setPlace] = useState<string | null>(null);
  useEffect(() => setPlace(null), [id, waits]);
  useEffect(() => {
    if (!waits) return undefined;
    const stop = new AbortController();
    const told = ({ waiting, jobs }: Queue) => {
      const found = jobs.find((job) => job.id === id);
      setPlace(found ? `${count(found.position)} of ${count(waiting)} in the queue` : null);
    };
    get<Queue>(PATH, stop.signal).then(told, () => undefined); // the stream says when the service is away
    return () => stop.abort();
  }, [id, waits, load]);
  return place;
}
