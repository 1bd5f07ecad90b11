// A second question before something is lost; the keyboard is on the answer that changes nothing.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface DoubtProps {
  words?: string;
  yes: string;
  no: string;
  act: () => void;
  leave: () => void;
  children?: ComponentChildren;
}

export function Doubt({ words, yes, no, act, leave, children }: DoubtProps) {
  const keep = useRef<HTMLButtonElement>(null);
  useEffect(() => keep.current?.focus(), []);
  return (
    <>
      <button type="button" class="danger" onClick={act}>
        {yes}
      </button>
      <button type="button" ref={keep} onClick={leave}>
        {no}
      </button>
      {children}
      {words && <p role="status">{words}</p>}
    </>
  );
}

/** Why the service refused. */
export function Refusal({ words }: { words: string | null }) {
  if (words === null) return null;
  return (
    <p role="alert" class="refused">
      {words}
    </p>
  );
}
