// Where things are: nodes and who sits on them; projects, what each is guaranteed and what it has.
import { useEffect, useState } from "preact/hooks";
import { get, type JobLine, type Node, type NodeResources, type Project } from "./api";
import { colourOf } from "./colours";
import type { World } from "./state";
import { amount, bytes, count, counted, gpuCount, percent } from "./words";

const REFRESH_MS = 10_000;
const PAGE_SIZE = 50;
const TASK = /^(.+)-(worker|server|coordinator)-\d+-\d+$/;

/** What the service answers at `path`, asked again every ten seconds while it is shown. */
function useAnswer<Body>(path: string): Body | null {
  const [found, setFound] = useState<Body | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    const load = () => get<Body>(path, stop.signal).then(setFound, () => undefined); // the stream says when it is away
    void load();
    const timer = window.setInterval(() => void load(), REFRESH_MS);
    return () => {
      stop.abort();
      window.clearInterval(timer);
    };
  }, [path]);
  return found;
}

export function Nodes({ world }: { world: World }) {
  const found = useAnswer<{ nodes: Node[] }>("/v1/nodes");
  const [page, setPage] = useState(0);
  if (!found) return <p class="quiet empty">Loading …</p>;
  const { nodes } = found;
  const first = Math.min(page, Math.max(Math.ceil(nodes.length / PAGE_SIZE) - 1, 0)) * PAGE_SIZE;
  const full = nodes.filter((node) => node.used.cpu >= node.capacity.cpu).length;
  return (
    <article aria-labelledby="nodes">
      <h1 id="nodes">Nodes</h1>
      <p class="quiet">
        {counted(nodes.length, "node")}; on {full === nodes.length && full > 1 ? "all" : count(full)} every CPU core is
        taken.
      </p>
      <div class="table">
        <table class="places nodes">
          <thead>
            <tr>
              <th scope="col">node</th>
              <th scope="col">CPU cores</th>
              <th scope="col">GPUs</th>
              <th scope="col" class="wide">
                memory
              </th>
              <th scope="col" class="text">
                who sits there
              </th>
            </tr>
          </thead>
          <tbody>
            {nodes.slice(first, first + PAGE_SIZE).map((node) => (
              <tr key={node.name}>
                <th scope="row">
                  {node.name}
                  {!node.schedulable && <span class="under">takes no new tasks</span>}
                </th>
                <td>
                  <Part
                    name={`CPU cores of ${node.name}`}
                    used={node.used.cpu}
                    total={node.capacity.cpu}
                    words={amount}
                  />
                </td>
                <td>
                  <Gpus node={node} />
                </td>
                <td class="wide">
                  <Part
                    name={`memory of ${node.name}`}
                    used={node.used.memory_bytes}
                    total={node.capacity.memory_bytes}
                    words={bytes}
                  />
                </td>
                <td class="text">
                  <Tenants tasks={node.tasks} jobs={world.jobs} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {nodes.length > PAGE_SIZE && (
        <nav class="pages" aria-label="Pages of the nodes">
          <button type="button" disabled={first === 0} onClick={() => setPage(first / PAGE_SIZE - 1)}>
            previous
          </button>
          <span>
            {first + 1}–{Math.min(first + PAGE_SIZE, nodes.length)} of {count(nodes.length)}
          </span>
          <button
            type="button"
            disabled={first + PAGE_SIZE >= nodes.length}
            onClick={() => setPage(first / PAGE_SIZE + 1)}
          >
            next
          </button>
        </nav>
      )}
    </article>
  );
}

function Part({
  name,
  used,
  total,
  words,
}: {
  name: string;
  used: number;
  total: number;
  words: (value: number) => string;
}) {
  return (
    <>
      {words(used)} <span class="quiet">of {words(total)}</span>
      <meter min={0} max={Math.max(total, 1e-9)} value={used} aria-label={`${name} in use`}>
        {percent(total ? used / total : 0)}
      </meter>
    </>
  );
}

function Gpus({ node: { capacity, used } }: { node: Node }) {
  if (!gpuCount(capacity)) return <span class="quiet">none</span>;
  const types = Object.keys(capacity.gpus);
  return (
    <>
      {gpuCount(used)} <span class="quiet">of {gpuCount(capacity)}</span>
      <span class="under">{types.join(", ")}</span>
    </>
  );
}

/** The jobs that have tasks there, with how many in each role. */
function Tenants({ tasks, jobs }: { tasks: string[]; jobs: Map<string, JobLine> }) {
  const found = new Map<string, Map<string, number>>();
  for (const task of tasks) {
    const [, id = task, role = "task"] = TASK.exec(task) ?? [];
    const roles = found.get(id) ?? new Map<string, number>();
    found.set(id, roles.set(role, (roles.get(role) ?? 0) + 1));
  }
  if (!found.size) return <span class="quiet">nobody</span>;
  const shown = [...found].slice(0, PAGE_SIZE);
  return (
    <ul class="tenants">
      {shown.map(([id, roles]) => (
        <li key={id}>
          <span class={`swatch series-${colourOf(id)}`} />
          <a href={`#/jobs/${id}`}>{jobs.get(id)?.name ?? id}</a>{" "}
          <span class="quiet">{[...roles].map(([role, number]) => counted(number, role)).join(", ")}</span>
        </li>
      ))}
      {found.size > shown.length && <li class="quiet">{counted(found.size - shown.length, "more job")}</li>}
    </ul>
  );
}

export function Projects({ world }: { world: World }) {
  const found = useAnswer<{ projects: Project[] }>("/v1/projects");
  if (!found) return <p class="quiet empty">Loading …</p>;
  const quotas = new Set(found.projects.map((project) => project.name));
  const active = [...world.jobs.values()].filter((job) => !job.finished_at && !quotas.has(job.project));
  const others = [...new Set(active.map((job) => job.project))].sort().slice(0, PAGE_SIZE);
  return (
    <article aria-labelledby="projects">
      <h1 id="projects">Projects</h1>
      <p class="quiet">
        A project with a quota has its share whenever it needs it; what it leaves idle others may borrow until then.
      </p>
      {found.projects.length > 0 && (
        <div class="table">
          <table class="places">
            <thead>
              <tr>
                <th scope="col">project</th>
                <th scope="col">guaranteed</th>
                <th scope="col">used</th>
                <th scope="col">borrowed</th>
                <th scope="col" class="wide">
                  jobs
                </th>
              </tr>
            </thead>
            <tbody>
              {found.projects.map((project) => (
                <tr key={project.name}>
                  <th scope="row">
                    {project.name}
                    <span class="under">{project.quota.may_borrow ? "may borrow" : "never gets more"}</span>
                  </th>
                  <td>
                    {resources(project.guaranteed)}
                    {project.quota.share != null && (
                      <span class="under">{percent(project.quota.share)} of the cluster</span>
                    )}
                  </td>
                  <td>
                    {resources(project.used)}
                    <meter
                      min={0}
                      max={1}
                      value={Math.min(part(project.used, project.guaranteed), 1)}
                      aria-label={`part of the guarantee of ${project.name} in use`}
                    />
                  </td>
                  <td>{resources(project.borrowed)}</td>
                  <td class="wide">
                    {Object.entries(project.jobs)
                      .map(([state, number]) => `${number} ${state}`)
                      .join(", ") || <span class="quiet">none active</span>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <section aria-labelledby="others">
        <h2 id="others">Without a quota</h2>
        <p class="quiet">
          {others.length
            ? "They have no guarantee and get what the others leave."
            : "No job that is active belongs to a project without a quota."}{" "}
          Give one: <code>optimus project set NAME --share 0.25</code>
        </p>
        <ul class="legend">
          {others.map((name) => (
            <li key={name}>
              {name}{" "}
              <span class="quiet">{counted(active.filter((job) => job.project === name).length, "active job")}</span>
            </li>
          ))}
        </ul>
      </section>
    </article>
  );
}

/** The largest part of any resource that is guaranteed. */
function part(used: NodeResources, guaranteed: NodeResources): number {
  const pairs = [
    [used.cpu, guaranteed.cpu],
    [used.memory_bytes, guaranteed.memory_bytes],
    ...Object.entries(used.gpus).map(([kind, number]) => [number, guaranteed.gpus[kind] ?? 0]),
  ];
  return Math.max(...pairs.map(([has = 0, right = 0]) => (right > 0 ? has / right : Number(has > 0))));
}

function resources({ cpu, memory_bytes, gpus }: NodeResources): string {
  const parts = [
    cpu > 0 && `${amount(cpu)} ${cpu === 1 ? "core" : "cores"}`,
    ...Object.entries(gpus).map(([kind, number]) => number > 0 && `${number} ${kind}`),
    memory_bytes > 0 && bytes(memory_bytes),
  ].filter(Boolean);
  return parts.join(", ") || "nothing";
}
