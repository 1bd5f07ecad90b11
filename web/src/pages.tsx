// Long lists in pages of fifty rows, so that thousands of rows stay as light as fifty.
import { useState } from "preact/hooks";
import { count } from "./words";

export const PAGE_SIZE = 50;

interface Paged<Item> {
  shown: Item[];
  page: number;
  turn: (page: number) => void;
}

/** The items of the page that is shown, and what turns pages. */
export function usePages<Item>(items: Item[]): Paged<Item> {
  const [wanted, turn] = useState(0);
  const page = Math.min(wanted, Math.max(Math.ceil(items.length / PAGE_SIZE) - 1, 0));
  return { shown: items.slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE), page, turn };
}

interface PagesProps {
  /** Of what, for those who cannot see it. */
  of: string;
  total: number;
  /** Whether there may be more. */
  hasMore?: boolean;
  page: number;
  turn: (page: number) => void;
}

export function Pages({ of, total, hasMore = false, page, turn }: PagesProps) {
  if (total <= PAGE_SIZE) return null;
  const last = Math.min((page + 1) * PAGE_SIZE, total);
  return (
    <nav class="pages" aria-label={`Pages of ${of}`}>
      <button type="button" disabled={page === 0} onClick={() => turn(page - 1)}>
        previous
      </button>
      <span>
        {page * PAGE_SIZE + 1}–{last} of {count(total)}
        {hasMore && " loaded"}
      </span>
      <button type="button" disabled={last === total} onClick={() => turn(page + 1)}>
        next
      </button>
    </nav>
  );
}
