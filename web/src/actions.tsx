// What can be done with a job now by who looks at it: buttons, each with a second question where something is lost.
import { useEffect, useState } from "preact/hooks";
import type { Job, WhoAmI } from "./api";
import { faultAt, useChange, type Fault } from "./asking";
import { Doubt, faultOf, Marked, Refusal } from "./doubt";
import { mayChange } from "./rights";
import { count } from "./words";

interface Action {
  label: string;
  method: "POST" | "DELETE";
  /** After the job's own. */
  path: string;
  /** Asked before it is done. */
  doubt?: { words: string; yes: string; no: string; extra?: { label: string; path: string } };
  /** Where the answer leads; undefined: the job is loaded again. */
  next?: (answer: Response) => Promise<string>;
}

/** States from which the service lets a job go on from its last checkpoint. */
const RESUMABLE = new Set<Job["state"]>(["failed", "cancelled"]);

function pauseOf(job: Job): Action {
  const pause: Action = { label: "Pause", method: "POST", path: "/pause" };
  if (!job.lost_by_a_stop) return pause;
  const words = `It is not known to go on from a checkpoint, and loses ${job.lost_by_a_stop}.`;
  return { ...pause, doubt: { words, yes: "Pause it all the same", no: "Let it run" } };
}

function cancelOf(job: Job): Action {
  const hasTasks = job.wanted.workers + job.running.workers > 0;
  const at = job.step ? ` at step ${count(job.step)}` : "";
  const goesNoFurther = at ? `It ends${at}.` : "It ends before it has made a step.";
  const ofTasks = hasTasks ? `Its tasks are stopped${at && `,${at}`}.` : goesNoFurther;
  const goesOn = hasTasks || job.spec.tracked ? "Let it run" : "Let it wait";
  return {
    label: "Cancel",
    method: "POST",
    path: "/cancel",
    doubt: {
      words: job.spec.tracked ? "It trains on outside the cluster, and is no longer watched." : ofTasks,
      yes: "Cancel the job",
      no: job.spec.paused ? "Leave it paused" : goesOn,
    },
  };
}

const RESUME: Action = { label: "Resume", method: "POST", path: "/resume" };
const AGAIN: Action = {
  label: "Run again",
  method: "POST",
  path: "/retry",
  next: async (answer) => `#/jobs/${((await answer.json()) as Job).id}`,
};
const DELETE: Action = {
  label: "Delete",
  method: "DELETE",
  path: "",
  doubt: {
    words: "Everything that is known of it goes: losses, events, decisions. That cannot be taken back.",
    yes: "Delete the job",
    no: "Keep it",
    extra: { label: "its checkpoints, model and logs too", path: "?checkpoints=true" },
  },
  next: async () => "#/",
};

/** What can be asked for in the state that the job is in. */
export function actionsOf(job: Job): Action[] {
  if (job.finished_at) {
    const goesOn = !job.spec.tracked && RESUMABLE.has(job.state) && job.step > 0 && !job.begins_anew;
    return [
      ...(goesOn ? [{ ...RESUME, label: "Resume from the last checkpoint" }] : []),
      ...(job.spec.tracked ? [] : [AGAIN]),
      DELETE,
    ];
  }
  const ends = job.directive === "finish" || job.directive === "cancel";
  if (job.spec.tracked) return ends ? [] : [cancelOf(job)];
  if (job.spec.paused) return [RESUME, ...(ends ? [] : [cancelOf(job)])];
  return ends ? [] : [pauseOf(job), cancelOf(job)];
}

interface ActionsProps {
  job: Job;
  /** Loads the job at once. */
  again: () => void;
  caller: WhoAmI | null;
  needsToken: () => void;
}

/** The buttons of a job, for who may change it. */
export function Actions({ job, again, caller, needsToken }: ActionsProps) {
  /** Done, though the job has not been loaded again yet. */
  const [asked, setAsked] = useState<string | null>(null);
  const [doubted, setDoubted] = useState<Action | null>(null);
  const { send, sends, refusal, refuse } = useChange(needsToken);
  const actions = actionsOf(job);
  const offered = actions.map((each) => each.label).join();
  useEffect(() => {
    setAsked(null);
    setDoubted(null);
  }, [offered, job.id]);
  if (!mayChange(caller, job)) return null;
  const base = `/v1/jobs/${encodeURIComponent(job.id)}`;
  const act = ({ label, method, path, next }: Action, extra = "") => {
    setDoubted(null);
    send({ path: base + path + extra, method }, async (answer) => {
      setAsked(label);
      if (next) location.hash = await next(answer);
      else again();
    });
  };
  const setPriority = (priority: number) => send({ path: base, method: "PATCH", body: { priority } }, again);
  return (
    <div class="actions">
      {doubted ? (
        <AskedTwice action={doubted} act={act} leave={() => setDoubted(null)} />
      ) : (
        <>
          {actions.map((action) => (
            <button
              key={action.label}
              type="button"
              disabled={sends || asked === action.label}
              onClick={() => (action.doubt ? setDoubted(action) : act(action))}
            >
              {action.label}
            </button>
          ))}
          {!job.finished_at && !job.spec.tracked && (
            <Priority
              job={job}
              most={caller?.limits.max_priority ?? null}
              fault={faultOf(refusal, "priority")}
              set={setPriority}
              refuse={refuse}
            />
          )}
        </>
      )}
      <Refusal fault={refusal} fields={["priority"]} />
    </div>
  );
}

interface AskedTwiceProps {
  action: Action;
  act: (action: Action, extra?: string) => void;
  leave: () => void;
}

function AskedTwice({ action, act, leave }: AskedTwiceProps) {
  const [withExtra, setExtra] = useState(false);
  const { doubt } = action;
  if (!doubt) return null;
  const { words, yes, no, extra } = doubt;
  return (
    <Doubt words={words} yes={yes} no={no} act={() => act(action, withExtra ? extra?.path : "")} leave={leave}>
      {extra && (
        <label class="check">
          <input type="checkbox" checked={withExtra} onChange={(event) => setExtra(event.currentTarget.checked)} />
          {extra.label}
        </label>
      )}
    </Doubt>
  );
}

interface PriorityProps {
  job: Job;
  /** null: no limit. */
  most: number | null;
  fault: string | null;
  set: (priority: number) => void;
  refuse: (fault: Fault | null) => void;
}

/** Who comes first when not all find room: a number that its owner may set up to a limit. */
function Priority({ job, most, fault, set, refuse }: PriorityProps) {
  const present = job.spec.priority ?? 1;
  const [draft, setDraft] = useState<string | null>(null);
  useEffect(() => setDraft(null), [present, job.id]);
  const wanted = Number(draft);
  const isNumber = draft !== null && draft.trim() !== "" && Number.isFinite(wanted);
  const isNew = draft !== null && !(isNumber && wanted === present);
  return (
    <form
      class="priority"
      onSubmit={(event) => {
        event.preventDefault();
        if (isNew && isNumber) set(wanted);
        else if (isNew) refuse(faultAt("priority", "must be a number"));
      }}
    >
      <Marked label="Priority" fault={fault}>
        {(marks) => (
          <input
            type="text"
            inputMode="decimal"
            size={5}
            value={draft ?? String(present)}
            title={most === null ? undefined : `at most ${most}`}
            onInput={(event) => {
              setDraft(event.currentTarget.value);
              refuse(null);
            }}
            {...marks}
          />
        )}
      </Marked>
      {isNew && <button type="submit">Set</button>}
    </form>
  );
}
