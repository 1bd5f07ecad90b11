// Server-sent events over fetch: unlike EventSource it can send the token in a header.
import { call, NeedsToken } from "./api";

export interface Message {
  event: string;
  data: string;
}

/** Messages of a stream of server-sent events, whatever pieces it comes in. */
export async function* messages(pieces: AsyncIterable<string>): AsyncGenerator<Message> {
  let rest = "";
  for await (const piece of pieces) {
    rest += piece;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const message = parsed(rest.slice(0, end));
      rest = rest.slice(end + 2);
      if (message) yield message;
    }
  }
}

function parsed(block: string): Message | null {
  let event = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}

async function* pieces(body: ReadableStream<Uint8Array>, alive: () => void): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      yield value;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export interface Handlers {
  message(message: Message): void;
  connected(): void;
  lost(): void;
  needsToken(): void;
}

const SILENCE_MS = 40_000; // the service sends something every 15 seconds
const RETRY_MS = [500, 1000, 2000, 5000];

/** Follow /v1/stream until `stop` is aborted, connecting again whenever the connection is lost. */
export async function follow(handlers: Handlers, stop: AbortSignal): Promise<void> {
  let failures = 0;
  while (!stop.aborted) {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    stop.addEventListener("abort", abort);
    let silence = window.setTimeout(abort, SILENCE_MS);
    const alive = () => {
      window.clearTimeout(silence);
      silence = window.setTimeout(abort, SILENCE_MS);
    };
    try {
      const answer = await call("/v1/stream", { signal: attempt.signal, accept: "text/event-stream" });
      if (!answer.body) throw new Error("no body");
      handlers.connected();
      failures = 0;
      for await (const message of messages(pieces(answer.body, alive))) handlers.message(message);
    } catch (error) {
      if (error instanceof NeedsToken) {
        handlers.needsToken();
        return;
      }
    } finally {
      window.clearTimeout(silence);
      stop.removeEventListener("abort", abort);
    }
    if (stop.aborted) return;
    handlers.lost();
    await pause(RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)] ?? 5000, stop);
  }
}

function pause(milliseconds: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = window.setTimeout(resolve, milliseconds);
    stop.addEventListener(
      "abort",
      () => {
        window.clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}
