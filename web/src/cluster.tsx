// The first page: who has what, who waits and why, at a glance.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { ClusterLine, JobLine, WhoAmI } from "./api";
import { coloursOf } from "./colours";
import { groupOf, waitsForTasks } from "./groups";
import { countsOf, Jobs } from "./jobs";
import { ENDED } from "./older";
import { OverTime } from "./overtime";
import { PredictionScores } from "./scores";
import type { World } from "./state";
import { ago, amount, bytes, count, counted, gpuCount, percent, reasonWords, size } from "./words";

const LONGEST_BAR = 40;
const MOST_TYPE_TILES = 4;

interface ClusterProps {
  world: World;
  now: number;
  /** Who looks; null: that is not known. */
  caller: WhoAmI | null;
}

export function Cluster({ world, now, caller }: ClusterProps) {
  const [drawn, setDrawn] = useState<string[]>([]);
  const { cluster, jobs } = world;
  const training = [...jobs.values()]
    .filter((job) => ["starting", "training"].includes(groupOf(job)))
    .map((job) => job.id);
  const colours = useMemo(() => coloursOf(drawn, training.sort()), [drawn.join(), training.sort().join()]);
  if (!cluster)
    return (
      <p class="quiet empty">
        {world.connection === "lost" ? "The service cannot be reached. Trying again …" : "Loading …"}
      </p>
    );
  const active = [...jobs.values()].filter((job) => !job.finished_at);
  const oldest = Math.min(...[...jobs.values()].map((job) => Date.parse(job.created_at)), Date.now());
  return (
    <>
      <h1 class="headline">{headline(cluster, active)}</h1>
      <Trouble cluster={cluster} now={now} />
      <Waiting cluster={cluster} active={active} />
      <section aria-labelledby="now">
        <h2 id="now" class="unseen">
          Now
        </h2>
        <div class="tiles">
          <Gpus cluster={cluster} />
          <Tile name="CPU cores" used={cluster.used.cpu} total={cluster.capacity.cpu} words={amount} />
          <Tile name="Memory" used={cluster.used.memory_bytes} total={cluster.capacity.memory_bytes} words={bytes} />
          <div class="tile">
            <span class="name">Nodes</span>
            <span class="value">{count(cluster.nodes)}</span>
            <span class="quiet">{cluster.cordoned ? closedWords(cluster) : "all may be used"}</span>
            <a class="quiet" href="#/nodes">
              who sits where
            </a>
          </div>
          <div class="tile">
            <span class="name">Ended</span>
            <span class="value">{count(countsOf(jobs, cluster).ended)}</span>
            <span class="quiet">{ENDED.map((state) => `${count(cluster.jobs[state] ?? 0)} ${state}`).join(", ")}</span>
          </div>
        </div>
        <Shares active={active} cluster={cluster} colours={colours} />
      </section>
      <OverTime oldest={oldest} colours={colours} onDrawn={setDrawn} />
      <Jobs jobs={jobs} cluster={cluster} now={now} colours={colours} caller={caller} />
      <PredictionScores />
    </>
  );
}

function closedWords({ cordoned, nodes }: ClusterLine): string {
  return `${count(cordoned)} of ${counted(nodes, "node")} ${cordoned === 1 ? "takes" : "take"} no new tasks`;
}

export function headline(cluster: ClusterLine, active: JobLine[]): string {
  const training = active.filter((job) => groupOf(job) === "training").length;
  const starting = active.filter((job) => groupOf(job) === "starting").length;
  const waiting = active.filter(waitsForTasks).length;
  const paused = active.length - training - starting - waiting;
  const onGpus = gpuCount(cluster.used) > 0 || cluster.used.cpu === 0;
  const unit =
    gpuCount(cluster.capacity) > 0 && onGpus
      ? `${gpuCount(cluster.used)} of ${counted(gpuCount(cluster.capacity), "GPU")}`
      : `${amount(cluster.used.cpu)} of ${counted(cluster.capacity.cpu, "CPU core")}`;
  if (!active.length) return "Nothing is running, and nobody waits.";
  const closed = cluster.cordoned ? ` (${closedWords(cluster)})` : "";
  const trains =
    training === 0
      ? `Nothing is training${closed}`
      : `${counted(training, "job")} ${training === 1 ? "trains" : "train"} on ${unit}${closed}`;
  const waits = waiting === 0 ? "nobody waits" : `${count(waiting)} ${waiting === 1 ? "waits" : "wait"}`;
  const owners = paused === 1 ? "is paused by its owner" : "are paused by their owners";
  const pauses = paused === 0 ? "" : `; ${count(paused)} ${owners}`;
  const starts = starting === 0 ? "" : `; ${count(starting)} ${starting === 1 ? "starts" : "start"}`;
  const untold = cluster.left_out ? ` ${counted(cluster.left_out, "older active job")} not counted.` : "";
  return `${trains}${starts}; ${waits}${pauses}.${untold}`;
}

function Trouble({ cluster, now }: { cluster: ClusterLine; now: number }) {
  const late = cluster.last_round_at !== null && now - Date.parse(cluster.last_round_at) > 300_000;
  const troubles = [
    cluster.cluster_error && `The cluster cannot be asked: ${cluster.cluster_error}`,
    cluster.last_round_error && `The last scheduling round had an error: ${cluster.last_round_error}`,
    late && `The last scheduling round was ${ago(cluster.last_round_at, now)}: nothing is decided at the moment.`,
  ].filter(Boolean);
  if (!troubles.length) return null;
  return (
    <div class="trouble" role="alert">
      {troubles.map((each) => (
        <p>{each}</p>
      ))}
    </div>
  );
}

function Waiting({ cluster, active }: { cluster: ClusterLine; active: JobLine[] }) {
  const reasons = Object.entries(cluster.waiting_by_reason).sort(([, one], [, other]) => other - one);
  if (!reasons.length) return null;
  const oldest = active.filter(waitsForTasks).sort((one, other) => (one.created_at < other.created_at ? -1 : 1))[0];
  return (
    <p class="waits">
      {reasons.map(([reason, number], index) => (
        <span>
          {index > 0 && ", "}
          <strong>{number}</strong> {reasonWords(reason)}
        </span>
      ))}
      {oldest && (
        <>
          . The oldest of them: <a href={`#/jobs/${oldest.id}`}>{oldest.name}</a>. {oldest.message}
        </>
      )}{" "}
      <a href="#/queue">The queue</a>
    </p>
  );
}

/** A tile for each GPU type; of many types one tile for all of them, and a table. */
function Gpus({ cluster: { capacity, used } }: { cluster: ClusterLine }) {
  const types = Object.entries(capacity.gpus);
  if (types.length <= MOST_TYPE_TILES) {
    return (
      <>
        {types.map(([type, total]) => (
          <Tile
            name={type === "gpu" ? "GPUs" : `GPUs ${type}`}
            used={used.gpus[type] ?? 0}
            total={total}
            words={amount}
          />
        ))}
      </>
    );
  }
  return (
    <Tile name={`GPUs of ${types.length} types`} used={gpuCount(used)} total={gpuCount(capacity)} words={amount}>
      <details>
        <summary>By type</summary>
        <ul class="types">
          {types.map(([type, total]) => (
            <li>
              <span>{type}</span>{" "}
              <span>
                {amount(used.gpus[type] ?? 0)} of {amount(total)}
              </span>
            </li>
          ))}
        </ul>
      </details>
    </Tile>
  );
}

interface TileProps {
  name: string;
  used: number;
  total: number;
  words: (value: number) => string;
  children?: ComponentChildren;
}

function Tile({ name, used, total, words, children }: TileProps) {
  return (
    <div class="tile">
      <span class="name">{name}</span>
      <span class="value">
        {words(used)}
        <span class="of"> of {words(total)}</span>
      </span>
      <meter min={0} max={Math.max(total, 1)} value={used} aria-label={`${name} in use`}>
        {percent(total ? used / total : 0)}
      </meter>
      {children}
    </div>
  );
}

/** One bar for the whole cluster: a piece for each job that trains, what is free at the end. */
function Shares({
  active,
  cluster,
  colours,
}: {
  active: JobLine[];
  cluster: ClusterLine;
  colours: ReadonlyMap<string, number>;
}) {
  const holders = active
    .filter((job) => job.workers + job.servers > 0)
    .sort((one, other) => other.workers + other.servers - one.workers - one.servers);
  const shown = holders.slice(0, LONGEST_BAR);
  const tasks = holders.reduce((sum, job) => sum + job.workers + job.servers, 0);
  const share = cluster.capacity.cpu > 0 ? cluster.used.cpu / cluster.capacity.cpu : 1;
  if (!tasks) return null;
  return (
    <ol class="shares" aria-label="Who has what">
      {shown.map((job) => (
        <li
          style={{ flexGrow: String(((job.workers + job.servers) / tasks) * share * 1000) }}
          class={`series-${colours.get(job.id) ?? 10}`}
        >
          <a href={`#/jobs/${job.id}`} title={`${job.name}: ${size(job.workers, job.servers)}`}>
            <span class="label">{job.name}</span> <span class="unseen">{size(job.workers, job.servers)}</span>
          </a>
        </li>
      ))}
      {share < 1 && (
        <li class="free" style={{ flexGrow: String((1 - share) * 1000) }}>
          <span class="label">free</span>
        </li>
      )}
    </ol>
  );
}
