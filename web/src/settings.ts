// Which settings of several jobs differ: one row for each, down to single fields and options of commands.

export type Setting = { [name: string]: unknown };

/** Not settings of the training: each job has its own. */
const IGNORED = new Set(["name"]);

export interface Row {
  name: string;
  /** As text, by job; null: the job has no such setting. */
  values: (string | null)[];
}

export function differing(specs: Setting[]): Row[] {
  const all = specs.map((spec) => flat(spec));
  const names = [...new Set(all.flatMap((each) => [...each.keys()]))].sort();
  return names
    .map((name) => ({ name, values: all.map((each) => each.get(name) ?? null) }))
    .filter(({ name, values }) => !IGNORED.has(name) && new Set(values).size > 1);
}

/** workers.max → 4. What is null or empty is no setting. */
function flat(value: unknown, name = "", found = new Map<string, string>()): Map<string, string> {
  if (value === null || value === undefined) return found;
  if (name === "command" && Array.isArray(value)) return options(value.map(String), found);
  if (typeof value === "object" && !Array.isArray(value)) {
    for (const [part, each] of Object.entries(value)) flat(each, name ? `${name}.${part}` : part, found);
    return found;
  }
  if (!Array.isArray(value)) return found.set(name, String(value));
  return value.length ? found.set(name, value.map(wordOf).join(", ")) : found;
}

function wordOf(value: unknown): string {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Options of a command as settings of their own: `train.py --lr 3e-4` has `--lr` 3e-4, and `command` train.py. */
function options(words: string[], found: Map<string, string>): Map<string, string> {
  const plain: string[] = [];
  for (let place = 0; place < words.length; place += 1) {
    const [, option, given] = /^(--?[A-Za-z][\w.-]*)(?:=(.*))?$/s.exec(words[place] ?? "") ?? [];
    const next = words[place + 1];
    if (option === undefined) plain.push(words[place] ?? "");
    else if (given !== undefined) found.set(option, given);
    else if (next === undefined || /^--?[A-Za-z]/.test(next)) found.set(option, "yes");
    else {
      found.set(option, next);
      place += 1;
    }
  }
  return found.set("command", plain.join(" "));
}
