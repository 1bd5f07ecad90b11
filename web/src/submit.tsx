// Submitting a job: its file as text, the usual fields beside it, and what would happen, asked for at each change.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { parseDocument, type Document } from "yaml";
import { call, NeedsToken, Refused, type Allocation, type Job, type Plan, type WhoAmI } from "./api";
import { faultFrom, useFault, type Fault } from "./asking";
import { faultOf } from "./doubt";
import { useFocusOnFault } from "./focus";
import { may } from "./rights";
import { besideTable, counted, isDue, left, loses, size, UNKNOWN, wait } from "./words";

const PAUSE_MS = 500;
/** When the service could not be reached. */
const RETRY_MS = 5000;
const START = `# Every field: optimus submit --help-all, and the API's description at /docs
# A script has, in place of its task, a command: [python, train.py]
name: my-job
task: optimus_workers.zoo.digits:mlp
workers:
  min: 1
  max: 4
`;
/** The usual fields: where each stands in the file, and what it is called here. */
const FIELDS: { path: string[]; label: string; isNumber?: boolean; example?: string }[] = [
  { path: ["name"], label: "Name" },
  { path: ["project"], label: "Project" },
  { path: ["task"], label: "Task", example: "package.module:function" },
  { path: ["workers", "min"], label: "Workers at least", isNumber: true },
  { path: ["workers", "max"], label: "Workers at most", isNumber: true },
  { path: ["priority"], label: "Priority", isNumber: true },
];

/** The file as the service takes it, or what is wrong with it. */
interface Read {
  document: Document;
  spec: unknown;
  fault: string | null;
}

export function read(text: string): Read {
  const document = parseDocument(text, { version: "1.2" });
  const fault = document.errors[0]?.message ?? null;
  if (fault) return { document, spec: null, fault };
  const spec: unknown = document.toJS();
  const isObject = typeof spec === "object" && spec !== null && !Array.isArray(spec);
  return { document, spec, fault: isObject ? null : "a job's file has one field on each line, like name: my-job" };
}

/** The file with another value of one field: all else stays, comments too. Without a value the field goes. */
export function changed(text: string, path: string[], value: string, isNumber = false): string {
  const { document, fault } = read(text);
  if (fault) return text;
  const number = Number(value);
  if (value.trim() === "") document.deleteIn(path);
  else document.setIn(path, isNumber && Number.isFinite(number) ? number : value);
  return document.toString();
}

/** Of a refusal that names no field: whoever may submit at all may not submit to every project. */
const FIELD_OF = { 403: "project" };

/** What would happen, asked for when nobody has typed for a moment. */
function usePlan(spec: unknown, needsToken: () => void): [Plan | null, Fault | null, boolean] {
  const [plan, setPlan] = useState<Plan | null>(null);
  const [fault, setFault] = useState<Fault | null>(null);
  const [asks, setAsks] = useState(false);
  const wanted = JSON.stringify(spec);
  useEffect(() => {
    if (spec === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        const answer = await call("/v1/plan", { method: "POST", body: spec, signal: stop.signal });
        setPlan((await answer.json()) as Plan);
        setFault(null);
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof NeedsToken) return needsToken();
        setPlan(null);
        setFault(faultFrom(error, FIELD_OF));
        if (!(error instanceof Refused)) timer = window.setTimeout(() => void ask(), RETRY_MS);
      }
      setAsks(false);
    };
    setAsks(true);
    timer = window.setTimeout(() => void ask(), PAUSE_MS);
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [wanted]);
  return [plan, fault, asks];
}

/** Makes a second click, or an answer that was lost, no second job. */
function newKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");
}

interface SubmitProps {
  caller: WhoAmI | null;
  needsToken: () => void;
}

export function Submit({ caller, needsToken }: SubmitProps) {
  if (!caller) return <p class="quiet empty">Loading …</p>;
  if (may(caller, "submit")) return <SubmitForm caller={caller} needsToken={needsToken} />;
  return (
    <>
      <h1>Submit a job</h1>
      <p>
        You may not submit jobs: members of a project may, with a token of the scope submit or operate. An administrator
        makes members.
      </p>
    </>
  );
}

function SubmitForm({ caller, needsToken }: { caller: WhoAmI; needsToken: () => void }) {
  const projects = Object.entries(caller.projects ?? {}).flatMap(([name, right]) => (right === "member" ? [name] : []));
  // Whoever may submit to one project means that one.
  const [text, setText] = useState(() =>
    projects.length === 1 ? changed(START, ["project"], projects[0] ?? "") : START,
  );
  const [refusal, setRefusal] = useFault();
  const [sends, setSends] = useState(false);
  const key = useRef(newKey());
  const found = useMemo(() => read(text), [text]);
  const [plan, fault, asks] = usePlan(found.fault ? null : found.spec, needsToken);
  const form = useFocusOnFault<HTMLFormElement>(refusal);
  const edit = (next: string) => {
    setText(next);
    setRefusal(null);
    key.current = newKey();
  };
  const submit = async () => {
    setSends(true);
    try {
      const headers = { "Idempotency-Key": key.current };
      const answer = await call("/v1/jobs", { method: "POST", body: found.spec, headers });
      location.hash = `#/jobs/${((await answer.json()) as Job).id}`;
    } catch (error) {
      if (error instanceof NeedsToken) needsToken();
      else setRefusal(faultFrom(error, FIELD_OF));
      setSends(false);
    }
  };
  return (
    <>
      <h1>Submit a job</h1>
      <form
        class="submit"
        ref={form}
        onSubmit={(event) => {
          event.preventDefault();
          if (!found.fault && !sends) void submit();
        }}
      >
        <div class="fields">
          {FIELDS.map(({ path, label, isNumber, example }) => (
            <Field
              key={label}
              label={label}
              example={example ?? ""}
              isNumber={isNumber ?? false}
              isDisabled={found.fault !== null}
              value={found.fault ? "" : found.document.getIn(path)}
              fault={found.fault ? null : faultOf(fault ?? refusal, path.join("."))}
              options={label === "Project" ? projects : []}
              change={(value) => edit(changed(text, path, value, isNumber))}
            />
          ))}
          <label for="file">The job's file (YAML)</label>
          <textarea
            id="file"
            rows={14}
            spellcheck={false}
            value={text}
            aria-invalid={found.fault !== null}
            onInput={(event) => edit(event.currentTarget.value)}
          />
        </div>
        <section class="preview" aria-labelledby="preview" aria-busy={asks}>
          <h2 id="preview">What would happen</h2>
          {found.fault ? (
            <p role="alert" class="refused">
              {found.fault}
            </p>
          ) : (
            <>
              {fault && <Faults fault={fault} />}
              {plan && <Preview plan={plan} />}
              {!fault && !plan && <p class="quiet">Asking …</p>}
            </>
          )}
          {refusal && !fault && <Faults fault={refusal} />}
          <button type="submit" class="main" disabled={found.fault !== null || sends}>
            {sends ? "Submitting …" : "Submit"}
          </button>
        </section>
      </form>
    </>
  );
}

interface FieldProps {
  label: string;
  example: string;
  isNumber: boolean;
  isDisabled: boolean;
  value: unknown;
  /** What is wrong with it; null: nothing. */
  fault: string | null;
  options: string[];
  change: (value: string) => void;
}

function Field({ label, example, isNumber, isDisabled, value, fault, options, change }: FieldProps) {
  // What is being typed stays as it is typed: "1." is on its way to 1.5, though the file says 1.
  const [draft, setDraft] = useState<string | null>(null);
  const id = `field-${label.replaceAll(" ", "-").toLowerCase()}`;
  const shown = typeof value === "string" || typeof value === "number" ? String(value) : "";
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="text"
        inputMode={isNumber ? "decimal" : "text"}
        list={options.length ? `${id}-list` : undefined}
        disabled={isDisabled}
        placeholder={example}
        value={draft ?? shown}
        aria-invalid={fault !== null}
        aria-describedby={fault === null ? undefined : `${id}-fault`}
        onInput={(event) => {
          setDraft(event.currentTarget.value);
          change(event.currentTarget.value);
        }}
        onBlur={() => setDraft(null)}
      />
      {fault !== null && (
        <span id={`${id}-fault`} class="refused">
          {fault}
        </span>
      )}
      {options.length > 0 && (
        <datalist id={`${id}-list`}>
          {options.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </div>
  );
}

/** A field as the form calls it, and as the file does. */
function labelOf(field: string) {
  const label = FIELDS.find(({ path }) => path.join(".") === field)?.label;
  if (!label) return <code>{field}</code>;
  return (
    <>
      {label} (<code>{field}</code>)
    </>
  );
}

function Faults({ fault }: { fault: Fault }) {
  return (
    <div role="alert" class="refused" tabIndex={-1}>
      {fault.errors.length ? (
        <ul>
          {fault.errors.map(({ field, message }) => (
            <li key={field + message}>
              {labelOf(field)}: {message}
            </li>
          ))}
        </ul>
      ) : (
        <p>{fault.message}</p>
      )}
    </div>
  );
}

function Preview({ plan }: { plan: Plan }) {
  return (
    <>
      <dl class="expected">
        <dt>It would get</dt>
        <dd>{sizeOf(plan.allocation)}</dd>
        <dt>It would start</dt>
        <dd>{startOf(plan)}</dd>
        <dt>It would end</dt>
        <dd>{plan.expected.finish_seconds ? `in ${left(plan.expected.finish_seconds)}` : UNKNOWN}</dd>
      </dl>
      {besideTable(plan).map((each) => (
        <p key={each}>{each}</p>
      ))}
      <h3>What others lose</h3>
      {plan.effects.length === 0 ? (
        <p>No other job that you may see would get another size.</p>
      ) : (
        <div class="table">
          <table>
            <thead>
              <tr>
                <th scope="col">job</th>
                <th scope="col">now → then</th>
                <th scope="col">ends in</th>
                <th scope="col">loses</th>
              </tr>
            </thead>
            <tbody>
              {plan.effects.slice(0, 50).map((each) => (
                <tr key={each.job_id}>
                  <th scope="row">
                    <a href={`#/jobs/${each.job_id}`}>{each.name}</a>
                  </th>
                  <td>
                    {sizeOf(each.before)} → {sizeOf(each.after)}
                  </td>
                  <td>
                    {left(each.finish_seconds_before)} → {left(each.finish_seconds_after)}
                  </td>
                  <td>{loses(each)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {plan.effects.length > 50 && <p class="quiet">and {counted(plan.effects.length - 50, "other")}</p>}
        </div>
      )}
    </>
  );
}

function sizeOf({ workers, servers }: Allocation): string {
  return size(workers, servers);
}

function startOf(plan: Plan): string {
  const start = plan.expected.start_seconds;
  return start && isDue(start) ? "with the next round" : wait(start);
}
