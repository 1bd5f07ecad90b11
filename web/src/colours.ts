// The colour of a job: the same in every picture and list, after going to a job and back, and after opening the page again.

/** Colours that can be told apart; the one after them is for all other jobs together. */
export const OTHERS = 10;
const KEPT = 300;
const PLACE = "optimus-colours";

let known = stored();

function stored(): ReadonlyMap<string, number> {
  try {
    return new Map(JSON.parse(localStorage.getItem(PLACE) ?? "[]") as [string, number][]);
  } catch {
    return new Map(); // somebody else wrote there
  }
}

/** Made of the id alone, so that it is the same in every browser as long as no other job on view has it. */
function preferred(id: string): number {
  let hash = 0;
  for (const letter of id) hash = (hash * 31 + letter.charCodeAt(0)) % 1_000_003;
  return hash % OTHERS;
}

/**
 * `before` with colours for `drawn`, then for `others`. What has a colour keeps it; where two that are shown together want
 * the same one, the later takes the next that is free. Where none is, one of `others` is grey, as it is in the picture,
 * and one that is drawn shares the colour that it wants.
 */
export function coloured(
  before: ReadonlyMap<string, number>,
  drawn: string[],
  others: string[] = [],
): Map<string, number> {
  const colours = new Map(before);
  const taken = new Set<number>();
  const give = (ids: string[], alone: boolean) => {
    for (const id of [...ids.filter((each) => before.has(each)), ...ids.filter((each) => !before.has(each))]) {
      const known = before.get(id) ?? OTHERS;
      const wanted = known === OTHERS ? preferred(id) : known;
      const turns = [...Array(OTHERS).keys()].map((turn) => (wanted + turn) % OTHERS);
      const found = turns.find((colour) => !taken.has(colour)) ?? (alone ? OTHERS : wanted);
      taken.add(found);
      colours.set(id, found);
    }
  };
  give(drawn, false);
  give(
    others.filter((id) => !drawn.includes(id)),
    true,
  );
  return colours;
}

/** Colours of jobs that are shown together, and of no others: those with an area in the picture, then all that train. */
export function coloursOf(drawn: string[], others: string[]): ReadonlyMap<string, number> {
  const next = coloured(known, drawn, others.slice(0, KEPT));
  if ([...next].some(([id, colour]) => known.get(id) !== colour)) {
    known = new Map([...next].slice(-KEPT));
    localStorage.setItem(PLACE, JSON.stringify([...known]));
  }
  const shown = new Set([...drawn, ...others]);
  return new Map([...next].filter(([id]) => shown.has(id)));
}

/** At the end of a session: the colours tell the ids of jobs. */
export function forgetColours(): void {
  known = new Map();
  localStorage.removeItem(PLACE);
}

export function colourOf(id: string): number {
  return known.get(id) ?? preferred(id);
}
