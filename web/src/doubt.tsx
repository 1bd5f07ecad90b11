// A second question before something is lost, and what is said of what was refused. The keyboard is on the answer that
// changes nothing, and on the field at fault.
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";
import type { Fault } from "./asking";
import { useFocusMeanwhile, useFocusOnFault } from "./focus";

interface DoubtProps {
  words?: string;
  yes: string;
  no: string;
  act: () => void;
  leave: () => void;
  children?: ComponentChildren;
}

export function Doubt({ words, yes, no, act, leave, children }: DoubtProps) {
  const keep = useFocusMeanwhile<HTMLButtonElement>();
  return (
    <div
      class="doubt"
      role="group"
      aria-label="Are you sure?"
      onKeyDown={(event) => {
        if (event.key === "Escape") leave();
      }}
    >
      <button type="button" class="danger" onClick={act}>
        {yes}
      </button>
      <button type="button" ref={keep} onClick={leave}>
        {no}
      </button>
      {children}
      {words && <p role="status">{words}</p>}
    </div>
  );
}

/** What is wrong with a field, or with a part of it; null: nothing. */
export function faultOf(fault: Fault | null, field: string): string | null {
  const found = (fault?.errors ?? []).filter((each) => isPart(each.field, field) || isPart(field, each.field));
  return found.length ? [...new Set(found.map((each) => each.message))].join("; ") : null;
}

function isPart(part: string, field: string): boolean {
  return part === field || part.startsWith(`${field}.`);
}

interface RefusalProps {
  fault: Fault | null;
  /** The fields of the form: their faults stand beside them. */
  fields?: string[];
}

/** Why the service refused, as far as no field of the form says it. */
export function Refusal({ fault, fields = [] }: RefusalProps) {
  const ref = useFocusOnFault<HTMLParagraphElement>(fault);
  const others = (fault?.errors ?? []).filter(
    ({ field }) => !fields.some((each) => isPart(each, field) || isPart(field, each)),
  );
  const isBeside = fault !== null && fault.errors.length > 0 && others.length === 0;
  const words = others.length ? others.map((each) => `${each.field}: ${each.message}`).join("; ") : fault?.message;
  return (
    <p role="alert" class="refused" ref={ref} tabIndex={-1} hidden={fault === null || isBeside}>
      {fault !== null && !isBeside && words}
    </p>
  );
}

interface MarkedProps {
  label: string;
  /** What is wrong with what is given; null: nothing. */
  fault: string | null;
  /** The control, which gets the attributes that tell its fault. */
  children: (marks: JSX.AriaAttributes) => ComponentChildren;
}

/** A control of a form with its label, and with what is wrong with it beside it. */
export function Marked({ label, fault, children }: MarkedProps) {
  const id = useId();
  return (
    <div class="marked">
      <label>
        {label} {children(fault === null ? {} : { "aria-invalid": true, "aria-describedby": id })}
      </label>
      {fault !== null && (
        <span class="refused" id={id}>
          {fault}
        </span>
      )}
    </div>
  );
}
