// What the address says after its #: a view (`/nodes`), and what is chosen in it (`?owner=ada`), so that it can be linked.
import { useEffect, useState } from "preact/hooks";

const CHOSEN = "optimus-chosen";

/** `#/compare?jobs=a,b` → `#/compare` */
export function viewOf(hash: string): string {
  return hash.replace(/\?.*/, "");
}

function queryOf(hash: string): URLSearchParams {
  return new URLSearchParams(/\?(.*)/.exec(hash)?.[1] ?? "");
}

/** A view with what is chosen in it; what is null or empty is left out. */
export function addressOf(view: string, query: Record<string, string | null>): string {
  const given = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  // Commas need no percent signs after a #, and people read addresses.
  const words = new URLSearchParams(given).toString().replaceAll("%2C", ",");
  return words ? `${view || "#/"}?${words}` : view || "#/";
}

/** The view that is shown. Another one begins at its top, with the focus on its content. */
export function useRoute(): string {
  const [route, setRoute] = useState(viewOf(location.hash));
  useEffect(() => {
    let before = viewOf(location.hash);
    const changed = () => {
      const now = viewOf(location.hash);
      if (now === before) return;
      before = now;
      setRoute(now);
      window.scrollTo(0, 0);
      document.getElementById("content")?.focus();
    };
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}

/** What is chosen in the view, and what chooses: it changes the address, and adds nothing to the browser's history. */
export function useQuery(): [URLSearchParams, (changes: Record<string, string | null>) => void] {
  const [query, setQuery] = useState(() => queryOf(location.hash));
  useEffect(() => {
    const changed = () => setQuery(queryOf(location.hash));
    window.addEventListener("hashchange", changed);
    window.addEventListener(CHOSEN, changed);
    return () => {
      window.removeEventListener("hashchange", changed);
      window.removeEventListener(CHOSEN, changed);
    };
  }, []);
  const choose = (changes: Record<string, string | null>) => {
    const next = { ...Object.fromEntries(queryOf(location.hash)), ...changes };
    history.replaceState(null, "", addressOf(viewOf(location.hash), next));
    window.dispatchEvent(new Event(CHOSEN));
  };
  return [query, choose];
}
