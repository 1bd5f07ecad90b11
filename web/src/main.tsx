// The page: a bar at the top, one of two views below, and a form for the token where one is needed.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { setToken } from "./api";
import { Cluster } from "./cluster";
import { JobPage } from "./job";
import { Nodes, Projects } from "./places";
import { Caller, endSession, FAILED, maySubmit, SignIn, useCaller } from "./signin";
import { useWorld, type World } from "./state";
import "./style.css";
import { nextTheme as next, startTheme, themeSign, type Theme } from "./theme";
import { ago } from "./words";

const JOB = /^#\/jobs\/([^/]+)$/;
const SUBMIT = "#/submit";
const PLACES: Record<string, [string, typeof Nodes]> = {
  "#/nodes": ["Nodes", Nodes],
  "#/projects": ["Projects", Projects],
};

type SubmitView = (typeof import("./submit"))["Submit"];

/** The view that submits: loaded when it is asked for, since what reads YAML is as large as all the rest. */
function Submit(props: Parameters<SubmitView>[0]) {
  const [View, setView] = useState<SubmitView | null>(null);
  useEffect(() => void import("./submit").then((loaded) => setView(() => loaded.Submit)), []);
  return View ? <View {...props} /> : <p class="quiet empty">Loading …</p>;
}

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
  const caller = useCaller(world, attempt);
  /** The service no longer takes what it took. */
  const needsToken = () => {
    setToken(null);
    setRefused(false);
    setAttempt(attempt + 1);
  };
  const leave = () => {
    endSession()
      .then(needsToken)
      .catch(() => location.reload());
  };
  useEffect(() => {
    if (caller && FAILED.test(route)) location.hash = "#/";
  }, [caller, route]);
  useEffect(() => {
    const name = job ? decodeURIComponent(job) : (placeName ?? (route === SUBMIT ? "Submit a job" : null));
    document.title = name ? `${name} · Optimus` : "Optimus";
  }, [job, placeName, route]);
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
          {maySubmit(caller) && (
            <a href={SUBMIT} aria-current={route === SUBMIT ? "page" : undefined}>
              Submit
            </a>
          )}
          {Object.entries(PLACES).map(([hash, [name]]) => (
            <a href={hash} aria-current={route === hash ? "page" : undefined}>
              {name}
            </a>
          ))}
          <a href="/docs">API</a>
          <button type="button" onClick={nextTheme} aria-label={`Colours: ${theme}`} title={`Colours: ${theme}`}>
            {themeSign(theme)}
          </button>
          <Caller caller={caller} leave={leave} />
        </nav>
      </header>
      <main id="content" tabIndex={-1}>
        {world.connection === "needs token" && <SignIn enter={enter} wasRefused={wasRefused} route={route} />}
        {world.connection !== "needs token" && job && (
          <JobPage id={decodeURIComponent(job)} world={world} now={now} needsToken={needsToken} />
        )}
        {world.connection !== "needs token" && route === SUBMIT && <Submit caller={caller} needsToken={needsToken} />}
        {world.connection !== "needs token" && Place && <Place world={world} />}
        {world.connection !== "needs token" && !job && !Place && route !== SUBMIT && (
          <Cluster world={world} now={now} caller={caller?.name ?? null} />
        )}
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

const place = document.getElementById("page");
if (place) render(<Page />, place);
