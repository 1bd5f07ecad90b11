// The page: a bar at the top, one of two views below, and a form for the token where one is needed.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { hasToken, setToken } from "./api";
import { Cluster } from "./cluster";
import { JobPage } from "./job";
import { Nodes, Projects } from "./places";
import { useWorld, type World } from "./state";
import "./style.css";
import { nextTheme as next, startTheme, themeSign, type Theme } from "./theme";
import { ago } from "./words";

const JOB = /^#\/jobs\/([^/]+)$/;
const PLACES: Record<string, [string, typeof Nodes]> = {
  "#/nodes": ["Nodes", Nodes],
  "#/projects": ["Projects", Projects],
};

function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  return now;
}

function useRoute(): string {
  const [route, setRoute] = useState(location.hash);
  useEffect(() => {
    const changed = () => {
      setRoute(location.hash);
      window.scrollTo(0, 0);
      document.getElementById("content")?.focus();
    };
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function useTheme(): [Theme, () => void] {
  const [name, setName] = useState(startTheme);
  return [name, () => setName(next())];
}

function Page() {
  const [attempt, setAttempt] = useState(0);
  const [wasRefused, setRefused] = useState(false);
  const world = useWorld(attempt);
  const now = useNow();
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  const job = JOB.exec(route)?.[1];
  const [placeName, Place] = PLACES[route] ?? [null, null];
  const enter = (token: string) => {
    setToken(token);
    setRefused(true);
    setAttempt(attempt + 1);
  };
  const leave = () => {
    setToken(null);
    setRefused(false);
    setAttempt(attempt + 1);
  };
  useEffect(() => {
    const name = job ? decodeURIComponent(job) : placeName;
    document.title = name ? `${name} · Optimus` : "Optimus";
  }, [job, placeName]);
  return (
    <>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("content")?.focus();
        }}
      >
        Skip to content
      </a>
      <header>
        <a href="#/" class="brand">
          <img src="/icon.svg" alt="" width="24" height="24" />
          Optimus
        </a>
        <Connection world={world} now={now} />
        <nav aria-label="Service">
          {Object.entries(PLACES).map(([hash, [name]]) => (
            <a href={hash} aria-current={route === hash ? "page" : undefined}>
              {name}
            </a>
          ))}
          <a href="/docs">API</a>
          <button type="button" onClick={nextTheme} aria-label={`Colours: ${theme}`} title={`Colours: ${theme}`}>
            {themeSign(theme)}
          </button>
          {hasToken() && (
            <button type="button" onClick={leave}>
              Sign out
            </button>
          )}
        </nav>
      </header>
      <main id="content" tabIndex={-1}>
        {world.connection === "needs token" && <SignIn enter={enter} wasRefused={wasRefused} />}
        {world.connection !== "needs token" && job && (
          <JobPage id={decodeURIComponent(job)} world={world} now={now} needsToken={leave} />
        )}
        {world.connection !== "needs token" && Place && <Place world={world} />}
        {world.connection !== "needs token" && !job && !Place && <Cluster world={world} now={now} />}
      </main>
      <footer>
        {world.cluster && (
          <>
            Optimus {world.cluster.version} · policy {world.cluster.policy}
          </>
        )}
      </footer>
    </>
  );
}

function Connection({ world, now }: { world: World; now: number }) {
  const words = {
    connecting: "connecting",
    live: "live",
    lost: `not connected${world.heardAt ? `, as of ${ago(new Date(world.heardAt).toISOString(), now)}` : ""}`,
    "needs token": "signed out",
  }[world.connection];
  const round =
    world.connection === "live" && world.cluster?.last_round_at ? `round ${ago(world.cluster.last_round_at, now)}` : "";
  return (
    <p class={`connection ${world.connection === "live" ? "live" : "not"}`}>
      <span class="pulse" aria-hidden="true" />
      <span role="status">{words}</span>
      {round && <span class="quiet wide"> · {round}</span>}
    </p>
  );
}

function SignIn({ enter, wasRefused }: { enter: (token: string) => void; wasRefused: boolean }) {
  const [token, change] = useState("");
  return (
    <form
      class="signin"
      onSubmit={(event) => {
        event.preventDefault();
        if (token.trim()) enter(token.trim());
      }}
    >
      <h1>Sign in</h1>
      <p>
        This service asks for its token. It is what <code>OPTIMUS_TOKEN</code> is set to, and is kept until this tab is
        closed.
      </p>
      <label for="token">Token</label>
      <input
        id="token"
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

const place = document.getElementById("page");
if (place) render(<Page />, place);
