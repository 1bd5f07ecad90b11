// Where things are: nodes and who sits on them; projects, what each is guaranteed and what it has.
import { useState } from "preact/hooks";
import type { JobLine, Node, NodeResources, Project, WhoAmI } from "./api";
import { faultAt, useAnswer, useChange } from "./asking";
import { Wide } from "./charts";
import { colourOf } from "./colours";
import { Doubt, faultOf, Marked, Refusal } from "./doubt";
import { PAGE_SIZE, Pages, usePages } from "./pages";
import { may } from "./rights";
import type { World } from "./state";
import { amount, bytes, count, counted, gpuCount, percent, quotaWords, whomLimitsHold } from "./words";

const TASK = /^(.+)-(worker|server|coordinator)-\d+-\d+$/;

interface NodesProps {
  world: World;
  caller: WhoAmI | null;
  needsToken: () => void;
}

export function Nodes({ world, caller, needsToken }: NodesProps) {
  const [found, again] = useAnswer<{ nodes: Node[] }>("/v1/nodes");
  const nodes = found?.nodes ?? [];
  const { shown, page, turn } = usePages(nodes);
  if (!found) return <p class="quiet empty">Loading …</p>;
  const full = nodes.filter((node) => node.used.cpu >= node.capacity.cpu).length;
  return (
    <article aria-labelledby="nodes">
      <h1 id="nodes">Nodes</h1>
      <p class="quiet">
        {counted(nodes.length, "node")}; {howMany(full, nodes.length)} every CPU core taken.
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
            {shown.map((node) => (
              <tr key={node.name}>
                <th scope="row">
                  {node.name}
                  <span class="under">{opennessOf(node)}</span>
                  {may(caller, "operate") && <Openness node={node} again={again} needsToken={needsToken} />}
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
      <Pages of="the nodes" total={nodes.length} page={page} turn={turn} />
    </article>
  );
}

/** none has, 1 has, 2 have, all have */
function howMany(some: number, all: number): string {
  if (some === 0) return "none has";
  if (some === all && all > 1) return "all have";
  return `${count(some)} ${some === 1 ? "has" : "have"}`;
}

function opennessOf({ schedulable, drained, tasks }: Node): string {
  if (schedulable) return "";
  if (!drained) return "cordoned: takes no new tasks";
  return tasks.length ? `draining: ${counted(tasks.length, "task")} to move` : "drained: empty";
}

interface OpennessProps {
  node: Node;
  again: () => void;
  needsToken: () => void;
}

/** What an operator can do with a node now. */
function Openness({ node, again, needsToken }: OpennessProps) {
  const { send, sends, refusal } = useChange(needsToken);
  const [isDoubted, setDoubted] = useState(false);
  const ask = (what: string) => {
    setDoubted(false);
    send({ path: `/v1/nodes/${encodeURIComponent(node.name)}/${what}`, method: "POST" }, again);
  };
  const button = (what: string, label: string, title: string) => (
    <button
      type="button"
      disabled={sends}
      title={title}
      onClick={() => (what === "drain" && node.tasks.length ? setDoubted(true) : ask(what))}
    >
      {label}
      <span class="unseen"> {node.name}</span>
    </button>
  );
  if (isDoubted)
    return (
      <div class="actions small">
        <Doubt
          words={`What is there (${counted(node.tasks.length, "task")}) moves to other nodes. A script that is not known to go on from a checkpoint begins anew.`}
          yes="Drain it"
          no="Leave it"
          act={() => ask("drain")}
          leave={() => setDoubted(false)}
        />
      </div>
    );
  return (
    <div class="actions small">
      {node.schedulable
        ? button("cordon", "Cordon", "Nothing new is placed there; what runs there stays")
        : button("uncordon", "Uncordon", "New tasks may be placed there again")}
      {!node.drained && button("drain", "Drain", "Nothing new is placed there, and its tasks move to other nodes")}
      <Refusal fault={refusal} />
    </div>
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

/** Whether the stream has told the active jobs, where there are any. */
function areJobsKnown({ cluster, jobs }: World): boolean {
  if (!cluster) return false;
  const active = ["queued", "running", "paused"].some((state) => (cluster.jobs[state] ?? 0) > 0);
  return !active || jobs.size > 0;
}

/** What projects without a quota have. */
function onOthers(world: World, number: number): string {
  if (number) return "They have no guarantee and get what the others leave.";
  return areJobsKnown(world) ? "No job that is active belongs to a project without a quota." : "Loading …";
}

interface ProjectsProps {
  world: World;
  caller: WhoAmI | null;
  needsToken: () => void;
}

export function Projects({ world, caller, needsToken }: ProjectsProps) {
  const [found, again] = useAnswer<{ projects: Project[] }>("/v1/projects");
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
        <Wide label="Quotas of projects">
          <table class="places">
            <thead>
              <tr>
                <th scope="col">project</th>
                <th scope="col">quota</th>
                <th scope="col">guaranteed now</th>
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
                    {may(caller, "operate") && <WithoutQuota project={project} again={again} needsToken={needsToken} />}
                  </th>
                  <td class="quota">
                    {quotaWords(project.quota)}
                    <Under words={whomLimitsHold(project.quota.limits)} before="limits hold for " />
                  </td>
                  <td>
                    {resources(project.guaranteed)}
                    <Under words={project.shrunk ?? ""} />
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
                  <td>
                    {project.quota.may_borrow ? resources(project.borrowed) : "nothing"}
                    {!project.quota.may_borrow && resources(project.borrowed) !== "nothing" && (
                      <span class="under">beyond its guarantee: {resources(project.borrowed)}, to be given back</span>
                    )}
                  </td>
                  <td class="wide">
                    {Object.entries(project.jobs)
                      .map(([state, number]) => `${number} ${state}`)
                      .join(", ") || <span class="quiet">none active</span>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
      {may(caller, "operate") && (
        <details>
          <summary>Give a project a quota, or change one</summary>
          <QuotaForm projects={found.projects} needsToken={needsToken} done={again} />
        </details>
      )}
      <section aria-labelledby="others">
        <h2 id="others">Without a quota</h2>
        <p class="quiet">
          {onOthers(world, others.length)}{" "}
          {may(caller, "operate") ? (
            <>
              Limits: <code>optimus project set NAME --max-priority 2</code>
            </>
          ) : (
            "Operators give quotas and limits."
          )}
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

function Under({ words, before = "" }: { words: string; before?: string }) {
  return words ? <span class="under">{before + words}</span> : null;
}

const QUOTA_FIELDS = ["name", "share", "cpu", "memory_bytes", "gpus", "may_borrow"];
const GIB = 2 ** 30;

/** `a100=8 v100=2` → numbers by GPU type; null: it is not written like that. */
export function gpusOf(text: string): Record<string, number> | null {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  const found = parts.map((each) => /^([^=]+)=(\d+)$/.exec(each));
  if (found.includes(null)) return null;
  return Object.fromEntries(found.map((each) => [each?.[1] ?? "", Number(each?.[2])]));
}

interface WithoutQuotaProps {
  project: Project;
  again: () => void;
  needsToken: () => void;
}

/** Takes a project's quota away, asked twice. */
function WithoutQuota({ project, again, needsToken }: WithoutQuotaProps) {
  const { send, sends, refusal } = useChange(needsToken);
  const [isDoubted, setDoubted] = useState(false);
  const take = () => {
    setDoubted(false);
    send({ path: `/v1/projects/${encodeURIComponent(project.name)}`, method: "DELETE" }, again);
  };
  return (
    <div class="actions small">
      {isDoubted ? (
        <Doubt
          words="Its jobs stay, without a guarantee; its limits go, too."
          yes="Take the quota away"
          no="Leave it"
          act={take}
          leave={() => setDoubted(false)}
        />
      ) : (
        <button type="button" disabled={sends} onClick={() => setDoubted(true)}>
          Remove<span class="unseen"> the quota of {project.name}</span>
        </button>
      )}
      <Refusal fault={refusal} />
    </div>
  );
}

interface QuotaFormProps {
  projects: Project[];
  needsToken: () => void;
  done: () => void;
}

/** A project's quota: what it is guaranteed, and whether it may borrow. Its limits stay. */
function QuotaForm({ projects, needsToken, done }: QuotaFormProps) {
  const [name, setName] = useState("");
  const [share, setShare] = useState("");
  const [cpu, setCpu] = useState("");
  const [memory, setMemory] = useState("");
  const [gpus, setGpus] = useState("");
  const [mayBorrow, setMayBorrow] = useState(true);
  const [stored, setStored] = useState<string | null>(null);
  const { send, sends, refusal, refuse } = useChange(needsToken);
  const choose = (chosen: string) => {
    setName(chosen);
    const quota = projects.find((project) => project.name === chosen.trim())?.quota;
    if (!quota) return;
    setShare(quota.share?.toString() ?? "");
    setCpu(quota.cpu?.toString() ?? "");
    setMemory(quota.memory_bytes == null ? "" : String(quota.memory_bytes / GIB));
    setGpus(
      Object.entries(quota.gpus ?? {})
        .map(([kind, number]) => `${kind}=${number}`)
        .join(" "),
    );
    setMayBorrow(quota.may_borrow);
  };
  const store = () => {
    setStored(null);
    const project = name.trim();
    const has = projects.find((each) => each.name === project)?.quota ?? {};
    const given = (text: string) => (text.trim() === "" ? null : Number(text));
    const kinds = gpusOf(gpus);
    if (!kinds) return refuse(faultAt("gpus", "must be like a100=8 v100=2"));
    const gib = given(memory);
    const body = {
      ...has,
      share: given(share),
      cpu: given(cpu),
      memory_bytes: gib === null ? null : Math.round(gib * GIB),
      gpus: kinds,
      may_borrow: mayBorrow,
    };
    send({ path: `/v1/projects/${encodeURIComponent(project)}`, method: "PUT", body }, () => {
      setStored(project);
      done();
    });
  };
  return (
    <form
      class="making"
      onSubmit={(event) => {
        event.preventDefault();
        if (!sends) store();
      }}
    >
      <Marked label="Project" fault={faultOf(refusal, "name")}>
        {(marks) => (
          <input
            value={name}
            required
            maxLength={63}
            placeholder="vision"
            onInput={(event) => choose(event.currentTarget.value)}
            {...marks}
          />
        )}
      </Marked>
      <Marked label="Share of the cluster" fault={faultOf(refusal, "share")}>
        {(marks) => (
          <input
            value={share}
            inputMode="decimal"
            pattern="[0-9.]*"
            placeholder="0.25"
            onInput={(event) => setShare(event.currentTarget.value)}
            {...marks}
          />
        )}
      </Marked>
      <Marked label="Cores" fault={faultOf(refusal, "cpu")}>
        {(marks) => (
          <input
            value={cpu}
            inputMode="decimal"
            pattern="[0-9.]*"
            placeholder="by the share"
            onInput={(event) => setCpu(event.currentTarget.value)}
            {...marks}
          />
        )}
      </Marked>
      <Marked label="Memory in GiB" fault={faultOf(refusal, "memory_bytes")}>
        {(marks) => (
          <input
            value={memory}
            inputMode="decimal"
            pattern="[0-9.]*"
            placeholder="by the share"
            onInput={(event) => setMemory(event.currentTarget.value)}
            {...marks}
          />
        )}
      </Marked>
      <Marked label="GPUs" fault={faultOf(refusal, "gpus")}>
        {(marks) => (
          <input
            value={gpus}
            placeholder="a100=8 v100=2"
            onInput={(event) => setGpus(event.currentTarget.value)}
            {...marks}
          />
        )}
      </Marked>
      <label class="check">
        <input type="checkbox" checked={mayBorrow} onChange={(event) => setMayBorrow(event.currentTarget.checked)} />{" "}
        May borrow what others leave idle
      </label>
      <button type="submit" class="button" disabled={sends}>
        Store the quota
      </button>
      <Refusal fault={refusal} fields={QUOTA_FIELDS} />
      <p role="status" class="quiet">
        {stored !== null && `The quota of ${stored} is stored.`}
      </p>
    </form>
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
