// The page: a bar at the top, one of two views below, and a form for the token where one is needed.
import { render, type ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { setToken, type WhoAmI } from "./api";
import { Cluster } from "./cluster";
import { forgetColours } from "./colours";
import { keepFocus } from "./focus";
import { JobPage } from "./job";
import { Nodes, Projects } from "./places";
import { QueueOfJobs } from "./queue";
import { hasTokens, may } from "./rights";
import { useRoute } from "./route";
import { Caller, endSession, FAILED, SignIn, useCaller } from "./signin";
import { useWorld, type World } from "./state";
import "./style.css";
import { nextTheme as next, startTheme, themeSign, type Theme } from "./theme";
import { ago } from "./words";

const RETRY_MS = 3000;
const JOB = /^#\/jobs\/([^/]+)$/;
/** The views beside the cluster and single jobs, and their titles. */
const TITLES: Record<string, string> = {
  "#/submit": "Submit a job",
  "#/compare": "Compare jobs",
  "#/queue": "Queue",
  "#/nodes": "Nodes",
  "#/projects": "Projects",
  "#/usage": "Usage",
  "#/users": "Users",
  "#/tokens": "Tokens",
};

/** A view that is loaded when it is asked for: most visits are to the cluster and its jobs. */
function later<Props extends object>(load: () => Promise<ComponentType<Props>>) {
  return function Later(props: Props) {
    const [View, setView] = useState<ComponentType<Props> | null>(null);
    const [fails, setFails] = useState(false);
    useEffect(() => {
      let timer = 0;
      const ask = () =>
        load().then(
          (loaded) => setView(() => loaded),
          () => {
            setFails(true);
            timer = window.setTimeout(() => void ask(), RETRY_MS);
          },
        );
      void ask();
      return () => window.clearTimeout(timer);
    }, []);
    if (View) return <View {...props} />;
    return <p class="quiet empty">{fails ? "The service cannot be reached. Trying again …" : "Loading …"}</p>;
  };
}

const Submit = later(() => import("./submit").then((loaded) => loaded.Submit));
const Compare = later(() => import("./compare").then((loaded) => loaded.Compare));
const UsageOfMonth = later(() => import("./usage").then((loaded) => loaded.UsageOfMonth));
const Users = later(() => import("./users").then((loaded) => loaded.Users));
const Tokens = later(() => import("./tokens").then((loaded) => loaded.Tokens));

function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  return now;
}

function useTheme(): [Theme, () => void] {
  const [name, setName] = useState(startTheme);
  return [name, () => setName(next())];
}

interface ViewProps {
  route: string;
  world: World;
  now: number;
  caller: WhoAmI | null;
  /** The service no longer takes what it took. */
  needsToken: () => void;
}

function View({ route, world, now, caller, needsToken }: ViewProps) {
  const job = JOB.exec(route)?.[1];
  if (job) {
    return <JobPage id={decodeURIComponent(job)} world={world} now={now} caller={caller} needsToken={needsToken} />;
  }
  switch (route) {
    case "#/submit":
      return <Submit caller={caller} needsToken={needsToken} />;
    case "#/compare":
      return <Compare needsToken={needsToken} />;
    case "#/queue":
      return <QueueOfJobs now={now} />;
    case "#/nodes":
      return <Nodes world={world} caller={caller} needsToken={needsToken} />;
    case "#/projects":
      return <Projects world={world} caller={caller} needsToken={needsToken} />;
    case "#/usage":
      return <UsageOfMonth />;
    case "#/users":
      if (may(caller, "administer")) return <Users now={now} needsToken={needsToken} />;
      return <p class="quiet empty">{caller ? "Administrators see users here." : "Loading …"}</p>;
    case "#/tokens":
      return <Tokens caller={caller} now={now} needsToken={needsToken} />;
    case "":
    case "#":
    case "#/":
      return <Cluster world={world} now={now} caller={caller} />;
    default:
      // The end of a sign-in leads on to the cluster.
      return FAILED.test(route) ? null : <NoView />;
  }
}

function NoView() {
  return (
    <>
      <h1>There is no such view</h1>
      <p>
        <a href="#/">To the cluster</a>
      </p>
    </>
  );
}

function Page() {
  const [attempt, setAttempt] = useState(0);
  const [wasRefused, setRefused] = useState(false);
  const world = useWorld(attempt);
  const now = useNow();
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  /** Whether somebody was signed in who has not signed out. */
  const wasIn = useRef(false);
  const [hasLeft, setLeft] = useState(false);
  const enter = (token: string) => {
    wasIn.current = false;
    setToken(token);
    setRefused(true);
    setAttempt(attempt + 1);
  };
  const caller = useCaller(world, attempt);
  const needsToken = () => {
    setToken(null);
    setRefused(false);
    setAttempt(attempt + 1);
  };
  useEffect(() => {
    if (caller) wasIn.current = true;
  }, [caller]);
  const leave = () => {
    endSession()
      .then(() => {
        wasIn.current = false;
        setLeft(true);
        forgetColours();
        location.hash = "#/";
        needsToken();
      })
      .catch(() => location.reload());
  };
  useEffect(() => {
    if (caller && FAILED.test(route)) location.hash = "#/";
  }, [caller, route]);
  useEffect(() => {
    const job = JOB.exec(route)?.[1];
    const name = job ? decodeURIComponent(job) : TITLES[route];
    document.title = name ? `${name} · Optimus` : "Optimus";
  }, [route]);
  const link = (view: string, words: string) => (
    <a href={view} aria-current={route === view ? "page" : undefined}>
      {words}
    </a>
  );
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
          {may(caller, "submit") && link("#/submit", "Submit")}
          {world.connection !== "needs token" && (
            <>
              {link("#/nodes", "Nodes")}
              {link("#/projects", "Projects")}
              {link("#/usage", "Usage")}
            </>
          )}
          {may(caller, "administer") && link("#/users", "Users")}
          {hasTokens(caller) && link("#/tokens", "Tokens")}
          <a href="/docs">API</a>
          <button type="button" onClick={nextTheme} aria-label={`Colours: ${theme}`} title={`Colours: ${theme}`}>
            {themeSign(theme)}
          </button>
          <Caller caller={caller} leave={leave} />
        </nav>
      </header>
      <main id="content" tabIndex={-1}>
        {world.connection === "needs token" ? (
          <SignIn
            enter={enter}
            wasRefused={wasRefused && !wasIn.current}
            hasEnded={wasIn.current}
            takesFocus={hasLeft || wasIn.current}
            route={location.hash}
          />
        ) : (
          <View route={route} world={world} now={now} caller={caller} needsToken={needsToken} />
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
if (place) {
  keepFocus(place);
  render(<Page />, place);
}
