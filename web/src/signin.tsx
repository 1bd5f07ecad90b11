// Signing in and out: with a token, which this tab keeps, or with the service's OpenID provider, whose session is a cookie
// that no program of a page can read.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, get, hasToken, NeedsToken, type SignInWays, type WhoAmI } from "./api";
import type { World } from "./state";

/** The view that says why a sign-in failed: the service leads there. */
export const FAILED = /^#\/sign-in\/([\w-]+)$/;

const WORDS: Record<string, string> = {
  elsewhere: "This sign-in was not begun in this browser, or took too long. Please try again.",
  refused: "The provider refused the sign-in. Please try again.",
  unavailable: "The provider cannot be reached at the moment. Please try again later.",
  "no-group": "You are signed in at the provider, but in none of the groups that may use this service.",
  "no-name": "The provider gives no user name that can be used here. Please ask an administrator.",
  "name-taken": "Somebody else has your user name here. Please ask an administrator.",
  "not-genuine": "What the provider says of you could not be verified. The service's log says why.",
};

/** Who is signed in; null: nobody, or that is not known yet. */
export function useCaller(world: World, attempt: number): WhoAmI | null {
  const [caller, setCaller] = useState<WhoAmI | null>(null);
  const isLive = world.connection === "live";
  useEffect(() => {
    const stop = new AbortController();
    if (world.connection === "needs token") setCaller(null);
    else if (isLive)
      get<WhoAmI>("/v1/whoami", stop.signal)
        .then(setCaller)
        .catch(() => undefined);
    return () => stop.abort();
  }, [isLive, world.connection === "needs token", attempt]);
  return caller;
}

/** What one may do, in a word or two. */
export function rightsOf(caller: WhoAmI): string {
  if (caller.role) return caller.role;
  const projects = Object.entries(caller.projects ?? {}).map(([name, right]) => `${right} of ${name}`);
  return projects.join(", ") || "no projects";
}

export function Caller({ caller, leave }: { caller: WhoAmI | null; leave: () => void }) {
  // Without tokens everybody is the same: nobody signs in, or out.
  if (!caller || caller.name === "local") return null;
  return (
    <>
      <span class="who wide" title={rightsOf(caller)}>
        {caller.name}
        <span class="unseen">, {rightsOf(caller)}</span>
      </span>
      <button type="button" onClick={leave}>
        Sign out
      </button>
    </>
  );
}

/** End the session of the provider's sign-in; a token of this tab is only forgotten, for others may use it. */
export async function endSession(): Promise<void> {
  if (hasToken()) return;
  try {
    await call("/v1/session", { method: "DELETE" });
  } catch (error) {
    if (!(error instanceof NeedsToken)) throw error;
  }
}

interface Props {
  enter: (token: string) => void;
  wasRefused: boolean;
  /** Whether somebody was signed in whose token or session is no longer taken. */
  hasEnded: boolean;
  /** Whether the focus goes to the field: somebody was at work here. */
  takesFocus: boolean;
  route: string;
}

export function SignIn({ enter, wasRefused, hasEnded, takesFocus, route }: Props) {
  const [token, change] = useState("");
  const [ways, setWays] = useState<SignInWays | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    get<SignInWays>("/v1/sign-in", stop.signal)
      .then(setWays)
      .catch(() => undefined);
    return () => stop.abort();
  }, []);
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    if (takesFocus) field.current?.focus();
  }, []);
  const failed = FAILED.exec(route)?.[1];
  const back = failed || !route ? "#/" : route;
  return (
    <form
      class="signin"
      onSubmit={(event) => {
        event.preventDefault();
        if (token.trim()) enter(token.trim());
      }}
    >
      <h1>Sign in</h1>
      {hasEnded && (
        <p role="alert" class="refused">
          You are signed out: your token or session was revoked, or its time is over.
        </p>
      )}
      {failed && (
        <p role="alert" class="refused">
          {WORDS[failed] ?? WORDS.refused}
        </p>
      )}
      {ways?.sso && (
        <>
          <a class="button" href={`/v1/sso/start?return_to=${encodeURIComponent(back)}`}>
            Sign in with {ways.sso}
          </a>
          <p class="quiet">or with a token:</p>
        </>
      )}
      {ways && !ways.sso && (
        <p>
          This service asks for a token: your own, or the administrator&rsquo;s (<code>OPTIMUS_TOKEN</code>). It is kept
          until this tab is closed.
        </p>
      )}
      <label for="token">Token</label>
      <input
        id="token"
        ref={field}
        type="password"
        autocomplete="current-password"
        value={token}
        onInput={(event) => change(event.currentTarget.value)}
      />
      {wasRefused && (
        <p role="alert" class="refused">
          The service does not know this token.
        </p>
      )}
      <button type="submit">Sign in</button>
    </form>
  );
}
