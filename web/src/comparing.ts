// Which jobs are chosen to be compared: kept while one looks at other views, until the page is left.
import { useState } from "preact/hooks";
import { addressOf } from "./route";

/** More curves than that nobody can tell apart. */
export const MOST = 12;

let kept: readonly string[] = [];

/** The chosen jobs, in the order in which they were chosen, and what chooses a job or lets it go. */
export function useChosen(): [readonly string[], (id: string | null) => void] {
  const [chosen, set] = useState(kept);
  /** null: none is chosen any more. */
  const toggle = (id: string | null) => {
    const next = chosen.includes(id ?? "") ? chosen.filter((each) => each !== id) : [...chosen, id ?? ""];
    kept = id === null ? [] : next.slice(0, MOST);
    set(kept);
  };
  return [chosen, toggle];
}

export function addressOfComparison(ids: readonly string[]): string {
  return addressOf("#/compare", { jobs: ids.join(",") });
}
