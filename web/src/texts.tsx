// Texts that tasks printed: the line that says most, the frames of tracebacks that are the user's own, then all of it.
import { tracebacks, type Traceback } from "./tracebacks";

/** A text that may be a traceback: the line that says most, and the rest when it is asked for. */
interface TextProps {
  text: string;
  line: string;
  summary: string;
  /** Whether the user's own frames are shown before it. */
  own?: boolean;
}

export function Text({ text, line, summary, own = false }: TextProps) {
  if (!text.trimEnd().includes("\n")) return <p>{line}</p>;
  return (
    <>
      <p>{line}</p>
      {own && <OwnFrames text={text} />}
      <details>
        <summary>{summary}</summary>
        <pre tabIndex={0}>{text.trimEnd()}</pre>
      </details>
    </>
  );
}

export function lastLine(text: string): string {
  return text.trimEnd().split("\n").at(-1)?.trim() ?? text;
}

const MOST_FRAMES = 4;
const MOST_TRACEBACKS = 3;

/** What went wrong in a text, newest first, with the user's own frames; nothing when it holds no traceback. */
export function OwnFrames({ text }: { text: string }) {
  const found = tracebacks(text).slice(-MOST_TRACEBACKS).reverse();
  if (!found.length) return null;
  return (
    <ol class="tracebacks">
      {found.map((each) => (
        <li>
          <strong>{each.error}</strong>
          <Frames traceback={each} />
        </li>
      ))}
    </ol>
  );
}

function Frames({ traceback: { frames } }: { traceback: Traceback }) {
  const own = frames.filter((frame) => frame.isOwn);
  const shown = (own.length ? own : frames.slice(-1)).slice(-MOST_FRAMES).reverse();
  const others = frames.length - shown.length;
  return (
    <>
      <ol class="frames">
        {shown.map((frame) => (
          <li>
            <span class="file">{frame.file}</span>, line {frame.line}, in {frame.name}
            {frame.code && <code>{frame.code}</code>}
          </li>
        ))}
      </ol>
      {others > 0 && (
        <p class="quiet">
          {own.length ? "Your code; " : "None of it is your code; "}
          {others} more {others === 1 ? "frame is" : "frames are"} in the text below.
        </p>
      )}
    </>
  );
}
