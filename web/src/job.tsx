// One job: how far it is, why it has what it has, its loss and what is predicted of it, what it had, what happened.
import { useEffect, useRef, useState } from "preact/hooks";
import {
  get,
  NeedsToken,
  Refused,
  type AllocationPoint,
  type EvaluationSeries,
  type Explanation,
  type Job,
  type JobEvent,
  type Predictions,
  type WhoAmI,
} from "./api";
import { Actions } from "./actions";
import { useLogarithmic } from "./charts";
import { colourOf } from "./colours";
import { Evaluations, Loss, Scale } from "./curves";
import { Ends as EndsOverTime } from "./ends";
import { labelsOf } from "./filters";
import { isBeingCancelled } from "./groups";
import { Badge, BEING_CANCELLED, Labels, Progress } from "./jobs";
import { Logs } from "./logs";
import { Allocations, inBatches } from "./sizes";
import { usePlace } from "./queue";
import { addressOf } from "./route";
import type { World } from "./state";
import { lastLine, Text } from "./texts";
import {
  ago,
  clock,
  count,
  duration,
  epochOf,
  isDue,
  left,
  number,
  range,
  size,
  tasks,
  UNKNOWN,
  totalSteps,
} from "./words";

interface Known {
  job: Job;
  explanation: Explanation;
  predictions: Predictions;
  allocations: AllocationPoint[];
  events: JobEvent[];
  evaluations: EvaluationSeries[];
}

const LEAST_PAUSE_MS = 3000;
/** Of active jobs: the time to a limit, a cost, a wait and a place in the queue go on while the stream tells nothing. */
const LONGEST_PAUSE_MS = 15_000;

/** `isFirst`: the job is asked for before the rest, for it may be missing. */
async function load(id: string, signal: AbortSignal, isFirst: boolean): Promise<Known> {
  const base = `/v1/jobs/${encodeURIComponent(id)}`;
  const asked = get<Job>(base, signal);
  if (isFirst) await asked;
  const [job, explanation, predictions, { allocations }, { events }, { series: evaluations }] = await Promise.all([
    asked,
    get<Explanation>(`${base}/explanation`, signal),
    get<Predictions>(`${base}/predictions?workers=1-4&servers=1-4`, signal),
    get<{ allocations: AllocationPoint[] }>(`${base}/allocations`, signal),
    get<{ events: JobEvent[] }>(`${base}/events?limit=50`, signal),
    get<{ series: EvaluationSeries[] }>(`${base}/evaluations`, signal),
  ]);
  return { job, explanation, predictions, allocations, events, evaluations };
}

/** What is known of a job: loaded when the stream says that the job changed, at most every three seconds, and until it has
 * ended every fifteen at least; and what loads it at once. */
function useKnown(id: string, world: World, needsToken: () => void): [Known | null, string | null, () => void] {
  const [known, setKnown] = useState<Known | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const line = world.jobs.get(id);
  const told = useRef(line);
  told.current = line;
  const ask = useRef<(atOnce: boolean) => void>(() => undefined);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let loading = false;
    let changed = false;
    let refused = false;
    let ended: string | null = null;
    let loadedAt = 0;
    const later = (pause: number) => {
      window.clearTimeout(timer);
      timer = window.setTimeout(() => void run(), pause);
    };
    const run = async () => {
      [loading, changed] = [true, false];
      let pause: number | null = null;
      try {
        const found = await load(id, stop.signal, loadedAt === 0);
        setKnown(found);
        setProblem(null);
        ended = found.job.finished_at;
        if (!ended) pause = LONGEST_PAUSE_MS;
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof NeedsToken) return needsToken();
        setProblem(error instanceof Refused ? error.message : "The service cannot be reached. Trying again …");
        // What was refused once is refused again.
        refused = error instanceof Refused && error.status < 500;
        if (refused) [changed, ended] = [false, null];
        if (refused)
          setKnown(null); // whoever may no longer read it does not see what it was
        else pause = LEAST_PAUSE_MS;
      }
      [loading, loadedAt] = [false, Date.now()];
      if (changed) pause = LEAST_PAUSE_MS;
      if (pause !== null) later(pause);
    };
    ask.current = (atOnce) => {
      if (!atOnce && refused && !told.current) return;
      if (!atOnce && ended && told.current?.finished_at === ended) return;
      if (loading) changed = true;
      else later(atOnce ? 0 : Math.max(0, loadedAt + LEAST_PAUSE_MS - Date.now()));
    };
    ask.current(true);
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [id]);
  useEffect(() => ask.current(false), [line, world.connection]);
  return [known, problem, () => ask.current(true)];
}

interface JobPageProps {
  id: string;
  world: World;
  now: number;
  caller: WhoAmI | null;
  needsToken: () => void;
}

export function JobPage({ id, world, now, caller, needsToken }: JobPageProps) {
  const [known, problem, again] = useKnown(id, world, needsToken);
  if (!known || known.job.id !== id) return problem ? <Missing words={problem} /> : <Loading />;
  return <Story known={known} now={now} problem={problem} again={again} caller={caller} needsToken={needsToken} />;
}

function Loading() {
  return <p class="quiet empty">Loading …</p>;
}

function Missing({ words }: { words: string }) {
  return (
    <>
      <h1>This job cannot be shown</h1>
      <p role="alert">{words}</p>
      <p>
        <a href="#/">All jobs</a>
      </p>
    </>
  );
}

interface StoryProps {
  known: Known;
  now: number;
  problem: string | null;
  /** Loads the job at once. */
  again: () => void;
  caller: WhoAmI | null;
  needsToken: () => void;
}

function Story({ known, now, problem, again, caller, needsToken }: StoryProps) {
  const { job, explanation, predictions, allocations, events, evaluations } = known;
  const [logarithmic, setLogarithmic] = useLogarithmic();
  const advice = [...predictions.advice, ...(predictions.checkpoints ? [predictions.checkpoints] : [])].map(
    (each) => each.message,
  );
  const leaves = isBeingCancelled(job);
  const waiting = !job.finished_at && !leaves && job.wanted.workers === 0;
  const tracked = job.spec.tracked === true;
  const whyItHasThat = tracked ? "Where it runs" : "Why it has that";
  const whyItStands = job.reason === "PausedByOwner" ? "Why it is paused" : "Why it waits";
  const whyHeading = waiting ? whyItStands : whyItHasThat;
  const place = usePlace(job.id, waiting && !tracked, known);
  const badge = { ...job, wanted_workers: job.wanted.workers, workers: job.running.workers };
  return (
    <article aria-labelledby="job">
      <p class="crumbs">
        <a href="#/">Cluster</a> / <a href={addressOf("#/", { project: job.project })}>{job.project}</a>
      </p>
      <div class="row">
        <h1 id="job">
          <span class={`swatch series-${colourOf(job.id)}`} />
          {job.name}
        </h1>
        <Badge job={badge} />
      </div>
      <p class="under">
        {job.owner && (
          <>
            by <a href={addressOf("#/", { owner: job.owner })}>{job.owner}</a> ·{" "}
          </>
        )}
        {job.id} · {trains(job)} · {tracked ? "outside the cluster" : job.spec.architecture}
      </p>
      <Labels labels={labelsOf(job.spec)} />
      {problem && (
        <div class="trouble" role="alert">
          <p>{problem}</p>
        </div>
      )}
      {job.failure && (
        <div class="trouble">
          <Text text={job.failure} line={explanation.message} summary="The whole error" own />
        </div>
      )}
      {job.retry_at && job.retries > 0 && <Retry job={job} at={job.retry_at} now={now} />}
      <Actions job={job} again={again} caller={caller} needsToken={needsToken} />
      <div class="tiles">
        <div class="tile">
          <span class="name">Progress</span>
          <span class="value">
            <Progress job={job} />
          </span>
          <span class="quiet">
            {job.progress != null && `step ${count(job.step)}`}
            {predictions.total_steps && job.progress != null && !job.finished_at
              ? ` of ${totalSteps(predictions.total_steps)}`
              : ""}
          </span>
        </div>
        <Ends job={job} explanation={explanation} waiting={waiting} place={place} now={now} />
        <div class="tile">
          <span class="name">Has</span>
          <span class="value">{job.finished_at ? UNKNOWN : tasks(job.running.workers, job.running.servers)}</span>
          <span class="quiet">
            {job.finished_at
              ? "it has ended"
              : `${size(job.running.workers, job.running.servers)}${inBatches(allocations.at(-1))}`}
            {job.running.gpu_type ? ` on ${job.running.gpu_type}` : ""}
          </span>
        </div>
        {predictions.cost && (
          <div class="tile">
            <span class="name">Cost</span>
            <span class="value">{number(predictions.cost.so_far)}</span>
            <span class="quiet">
              {predictions.cost.to_finish && !job.finished_at
                ? `so far; about ${number(predictions.cost.to_finish.mean)} more`
                : "so far"}
            </span>
          </div>
        )}
        <div class="tile">
          <span class="name">{job.result?.final_loss == null ? "Loss" : "Final loss"}</span>
          <span class="value">{number(job.result?.final_loss ?? job.loss, 4)}</span>
          <span class="quiet">
            {[
              job.result?.final_loss == null || job.spec.command || job.spec.tracked
                ? ""
                : "the mean of its last steps",
              job.steps_per_second == null
                ? ""
                : `${number(job.steps_per_second)} steps/s ${
                    job.silent_seconds == null ? "lately" : `until ${duration(job.silent_seconds)} ago`
                  }`,
              epochOf(job) === UNKNOWN ? "" : `epoch ${epochOf(job)}`,
            ]
              .filter((each) => each)
              .join(", ")}
          </span>
          {job.learning_rate != null && <span class="quiet">learning rate {number(job.learning_rate)}</span>}
        </div>
      </div>
      <section class="why" aria-labelledby="why">
        <h2 id="why">{job.finished_at ? "What became of it" : whyHeading}</h2>
        {explanation.sentences
          .filter((each) => !job.failure || each !== explanation.message)
          .map((each) => (
            <p>{each}</p>
          ))}
        {!job.finished_at && (
          <p>
            <strong>{tracked ? "To have it scheduled: " : "To get more: "}</strong>
            {explanation.what_would_change_it}
          </p>
        )}
        {advice.length > 0 && (
          <>
            <p>
              <strong>Worth a thought:</strong>
            </p>
            <ul>
              {advice.map((each) => (
                <li key={each}>{each}</li>
              ))}
            </ul>
          </>
        )}
        {explanation.reason && (
          <p class="quiet">
            Reason code <code>{explanation.reason}</code>
          </p>
        )}
      </section>
      {predictions.losses.length + evaluations.length > 0 && (
        <Scale logarithmic={logarithmic} choose={setLogarithmic} />
      )}
      <Loss job={job} predictions={predictions} logarithmic={logarithmic} />
      <Evaluations series={evaluations} metric={predictions.metric} logarithmic={logarithmic} />
      <EndsOverTime job={job} history={predictions.history} />
      <Allocations allocations={allocations} events={events} job={job} now={now} />
      <section aria-labelledby="events">
        <h2 id="events">Events</h2>
        <div class="table">
          <table>
            <thead>
              <tr>
                <th scope="col">when</th>
                <th scope="col" class="text">
                  what
                </th>
                <th scope="col" class="wide">
                  event
                </th>
              </tr>
            </thead>
            <tbody>
              {merged(events).map((event) => (
                <tr key={event.id}>
                  <td class="when">
                    <time dateTime={event.at} title={event.at}>
                      {ago(event.at, now)}
                    </time>
                  </td>
                  <td class="text">
                    <Text text={event.message} line={lastLine(event.message)} summary="All of it" />
                  </td>
                  <td class="wide quiet code">{event.type}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
      {!tracked && <Logs job={job} />}
    </article>
  );
}

/** What a job runs: its command, its task, or (a training elsewhere that tells its steps itself) nothing that is known. */
function trains({ spec }: Job) {
  if (spec.command) return spec.command.join(" ");
  return spec.task ? `${spec.task} · ${spec.mode}` : "a training outside the cluster";
}

/** The wait after an error: how long it still takes, and the error. */
function Retry({ job, at, now }: { job: Job; at: string; now: number }) {
  const seconds = Math.ceil((Date.parse(at) - now) / 1000);
  return (
    <div class="trouble" role="timer" aria-label="Next retry">
      <p>
        Retry {job.retries}
        {seconds > 0 ? ` in ${duration(seconds)}` : " is due: the job goes on when the next round gives it resources"}.
      </p>
      {job.last_error && <p>{job.last_error}</p>}
    </div>
  );
}

/** Exits of many tasks at once are one line: the newest, and how many there were. */
export function merged(events: JobEvent[]): JobEvent[] {
  const lines: (JobEvent & { more: number })[] = [];
  for (const event of events) {
    const last = lines[lines.length - 1];
    if (last && event.type === "TaskExited" && last.type === event.type && sameEnd(event, last)) last.more += 1;
    else lines.push({ ...event, more: 0 });
  }
  return lines.map(({ more, ...event }) =>
    more ? { ...event, message: `${event.message} So did ${more} other task${more === 1 ? "" : "s"}.` } : event,
  );
}

function sameEnd(one: JobEvent, other: JobEvent): boolean {
  const words = (event: JobEvent) => event.message.replace(/^\S+/, "");
  return words(one) === words(other) && Math.abs(Date.parse(one.at) - Date.parse(other.at)) < 60_000;
}

function Ends({
  job,
  explanation,
  waiting,
  place,
  now,
}: {
  job: Job;
  explanation: Explanation;
  waiting: boolean;
  /** In the queue, in words. */
  place: string | null;
  now: number;
}) {
  if (job.finished_at) {
    return (
      <div class="tile">
        <span class="name">Took</span>
        <span class="value">{duration(job.jct_seconds)}</span>
        <span class="quiet">ended {ago(job.finished_at, now)}</span>
      </div>
    );
  }
  if (isBeingCancelled(job)) {
    return (
      <div class="tile">
        <span class="name">Ends</span>
        <span class="value">{BEING_CANCELLED}</span>
      </div>
    );
  }
  if (job.reason === "PausedByOwner") {
    return (
      <div class="tile">
        <span class="name">Ends</span>
        <span class="value">{UNKNOWN}</span>
        <span class="quiet">goes on after it is resumed</span>
      </div>
    );
  }
  const { start_seconds: start, finish_seconds: finish, finish_at: at } = explanation.expected;
  if (waiting) {
    const due = start != null && isDue(start);
    return (
      <div class="tile">
        <span class="name">{due ? "Starts" : "Starts in"}</span>
        <span class="value">{due ? "at any moment" : duration(start?.mean)}</span>
        {!due && <span class="quiet">{start ? range(start) : "not known yet"}</span>}
        {place && (
          <a class="quiet" href="#/queue">
            {place}
          </a>
        )}
        {finish && <span class="quiet">{`ends ${at ? `at ${clock(at)}` : "later"}; in ${left(finish)}`}</span>}
      </div>
    );
  }
  return (
    <div class="tile">
      <span class="name">Ends in</span>
      <span class="value">{job.finishing ? "finishing" : duration(finish?.mean)}</span>
      {!job.finishing && <span class="quiet">{at ? `at ${clock(at)}; ${range(finish)}` : "not known yet"}</span>}
      {job.longer_than_predicted && <span class="quiet">longer than predicted</span>}
      {job.expected?.cut && <span class="quiet">{job.expected.cut.words}</span>}
    </div>
  );
}
