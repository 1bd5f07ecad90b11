// Python's tracebacks in what a task printed, and which of their frames are the user's own code.

export interface Frame {
  file: string;
  line: number;
  name: string;
  code: string;
  isOwn: boolean;
}

export interface Traceback {
  /** The line after the frames: the kind of the error and what it says. */
  error: string;
  /** As printed: the innermost last. */
  frames: Frame[];
}

const BEGIN = "Traceback (most recent call last):";
const FRAME = /^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$/;
/** What torchrun and others put before each line of a process. */
const PREFIX = /^(?:\[[^\]]*\]:?\s?)+/;
const LIBRARY = /\/(?:site|dist)-packages\/|\/lib\/python3[^/]*\/|\/optimus_(?:workers|client|contract)\/|^<frozen /;

export function tracebacks(text: string): Traceback[] {
  const found: Traceback[] = [];
  let open: Traceback | null = null;
  for (const printed of text.split("\n")) {
    const line = printed.replace(PREFIX, "");
    if (line.trimEnd().endsWith(BEGIN)) {
      open = { error: "", frames: [] };
      continue;
    }
    if (!open) continue;
    const frame = FRAME.exec(line);
    const last = open.frames[open.frames.length - 1];
    if (frame) open.frames.push(made(frame));
    else if (/^\s/.test(line) && last && !last.code && /\w/.test(line)) last.code = line.trim();
    else if (line.trim() && !/^\s/.test(line)) {
      open.error = line.trim();
      if (open.frames.length) found.push(open);
      open = null;
    }
  }
  return found;
}

function made([, file = "", line = "0", name = "the module"]: RegExpExecArray): Frame {
  return { file, line: Number(line), name, code: "", isOwn: !LIBRARY.test(file) };
}
