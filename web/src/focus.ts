// The keyboard's place. A browser forgets it when the element with the focus goes or is disabled; here it is kept: what
// follows gets the focus, or the same element once it is enabled again.
import { useLayoutEffect, useRef, type MutableRef } from "preact/hooks";
import type { Fault } from "./asking";

const FOCUSABLE = "a[href], button, input, select, textarea, summary";

/** An element, and for each element around it how many that take the focus stand before it. */
interface Place {
  element: HTMLElement;
  around: { element: Element; before: number }[];
}

/** What had the focus last; null: somebody has clicked since then. */
let held: Place | null = null;

function focusable(within: ParentNode): HTMLElement[] {
  return [...within.querySelectorAll<HTMLElement>(FOCUSABLE)].filter((each) => each.getClientRects().length > 0);
}

function placeOf(element: HTMLElement): Place {
  const all = focusable(document);
  const around: Place["around"] = [];
  let child: Element = element;
  for (let outer = child.parentElement; outer && outer !== document.body; outer = outer.parentElement) {
    const [within, inner] = [outer, child];
    const precedes = (each: Element) =>
      within.contains(each) && (inner.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_PRECEDING) !== 0;
    around.push({ element: outer, before: all.filter(precedes).length });
    child = outer;
  }
  return { element, around };
}

/** What stands at the place now: the element, or what follows where it is gone. */
function standsAt({ element, around }: Place): HTMLElement | null {
  if (element.isConnected) return element;
  for (const { element: outer, before } of around) {
    const found = outer.isConnected ? focusable(outer) : [];
    const next = found[Math.min(before, found.length - 1)];
    if (next) return next;
  }
  return null;
}

function restore(): void {
  if (held === null || (document.activeElement !== null && document.activeElement !== document.body)) return;
  const next = standsAt(held);
  // What is disabled gets the focus when it is enabled, or what follows when it goes.
  if (next?.matches(":disabled")) held = next === held.element ? held : placeOf(next);
  else next?.focus();
}

/** Watches the page from now on. */
export function keepFocus(page: Element): void {
  document.addEventListener("focusin", ({ target }) => {
    if (target instanceof HTMLElement) held = placeOf(target);
  });
  // A click beside everything lets the focus go; a click on a button gives it to the button right after this.
  document.addEventListener("pointerdown", () => (held = null), { capture: true });
  const changes = { childList: true, subtree: true, attributes: true, attributeFilter: ["disabled"] };
  new MutationObserver(restore).observe(page, changes);
}

/** For what takes another element's place for a while: the focus goes to it, and back when it goes. */
export function useFocusMeanwhile<E extends HTMLElement>(): MutableRef<E | null> {
  const ref = useRef<E>(null);
  useLayoutEffect(() => {
    const [own, opener] = [ref.current, held];
    own?.focus();
    return () => {
      if (opener && own?.parentElement?.contains(document.activeElement)) held = opener;
    };
  }, []);
  return ref;
}

/** After a refusal the focus is on the field at fault, or else on the message; `ref` is the form, or is in it. */
export function useFocusOnFault<E extends HTMLElement>(fault: Fault | null): MutableRef<E | null> {
  const ref = useRef<E>(null);
  useLayoutEffect(() => {
    const form = fault && ref.current?.closest("form, .actions");
    if (!form) return;
    const field = form.querySelector<HTMLElement>("[aria-invalid=true]:enabled");
    (field ?? form.querySelector<HTMLElement>("[role=alert]:not([hidden])"))?.focus();
  }, [fault]);
  return ref;
}
