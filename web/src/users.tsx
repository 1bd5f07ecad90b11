// Users, for administrators: who there is, what each may do; made, changed and removed here.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { User } from "./api";
import { useAnswer, useChange, type Fault } from "./asking";
import { Wide } from "./charts";
import { Doubt, faultOf, Marked, Refusal } from "./doubt";
import { Pages, usePages } from "./pages";
import { addressOf, useQuery } from "./route";
import { wordsIn } from "./tokens";
import { ago } from "./words";

const ROLES: { role: User["role"]; words: string }[] = [
  { role: null, words: "what the projects give" },
  { role: "operator", words: "operator: any job, nodes, quotas" },
  { role: "administrator", words: "administrator: everything" },
];

interface UsersProps {
  now: number;
  needsToken: () => void;
}

export function Users({ now, needsToken }: UsersProps) {
  const [found, again] = useAnswer<{ users: User[] }>("/v1/users");
  const [query, choose] = useQuery();
  const text = (query.get("find") ?? "").trim().toLowerCase();
  const users = (found?.users ?? []).filter((user) => suits(user, text));
  const { shown, page, turn } = usePages(users);
  const [edited, edit] = useState<string | null>(null);
  const leave = ({ name }: User) => {
    document.getElementById(`change-${name}`)?.focus();
    edit(null);
  };
  if (!found) return <p class="quiet empty">Loading …</p>;
  return (
    <article aria-labelledby="users">
      <h1 id="users">Users</h1>
      <p class="quiet">
        Whoever signs in with the company&rsquo;s login gets the rights of their groups at each sign-in. Jobs of a
        removed user stay.
      </p>
      <details class="new">
        <summary>Make a user</summary>
        <Rights user={null} needsToken={needsToken} done={again} />
      </details>
      <div class="row">
        <input
          type="search"
          aria-label="Find users by name or project"
          placeholder="name or project"
          value={query.get("find") ?? ""}
          onInput={(event) => choose({ find: event.currentTarget.value })}
        />
      </div>
      {users.length === 0 ? (
        <p class="quiet empty">{found.users.length ? "No user is like that." : "There is no user yet."}</p>
      ) : (
        <Wide label="Users">
          <table class="users">
            <thead>
              <tr>
                <th scope="col">user</th>
                <th scope="col">role</th>
                <th scope="col">member of</th>
                <th scope="col">viewer of</th>
                <th scope="col">
                  <span class="unseen">what can be done</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {shown.flatMap((user) => [
                <tr key={user.name}>
                  <th scope="row">
                    <a href={addressOf("#/", { owner: user.name })}>{user.name}</a>
                    <span class="under">
                      {[
                        user.kind === "service" ? "a program" : null,
                        user.subject ? "signs in with the company's login" : `made by ${user.created_by}`,
                        ago(user.created_at, now),
                      ]
                        .filter(Boolean)
                        .join(" · ")}
                    </span>
                  </th>
                  <td>{roleOf(user)}</td>
                  <td>{projectsOf(user, "member")}</td>
                  <td>{projectsOf(user, "viewer")}</td>
                  <td class="figure">
                    <div class="actions small">
                      <button
                        type="button"
                        id={`change-${user.name}`}
                        aria-expanded={edited === user.name}
                        onClick={() => edit(edited === user.name ? null : user.name)}
                      >
                        Change<span class="unseen"> {user.name}</span>
                      </button>
                      <Remove user={user} done={again} needsToken={needsToken} />
                    </div>
                  </td>
                </tr>,
                edited === user.name && (
                  <tr key={`${user.name} is changed`} class="making-row">
                    <td colSpan={5}>
                      <Rights
                        user={user}
                        needsToken={needsToken}
                        done={() => {
                          leave(user);
                          again();
                        }}
                        leave={() => leave(user)}
                      />
                    </td>
                  </tr>
                ),
              ])}
            </tbody>
          </table>
        </Wide>
      )}
      <Pages of="the users" total={users.length} page={page} turn={turn} />
    </article>
  );
}

function suits(user: User, text: string): boolean {
  return [user.name, user.role ?? "", ...Object.keys(user.projects)].some((each) => each.includes(text));
}

function roleOf({ role, projects }: User) {
  if (role) return role;
  return <span class="quiet">{Object.keys(projects).length ? "by project" : "no rights: may do nothing"}</span>;
}

function projectsOf({ projects }: User, right: "member" | "viewer"): string {
  return Object.keys(projects)
    .filter((name) => projects[name] === right)
    .sort()
    .join(", ");
}

const USER_FIELDS = ["name", "projects"];

/** Of projects that stand under both rights. */
function twice(projects: string[]): Fault {
  const message = "is under Member of, too: choose one of the two";
  return { message, errors: projects.map((each) => ({ field: `projects.${each}`, message })) };
}

/** What is wrong with one of these projects. */
function faultOfProjects(fault: Fault | null, projects: string[]): string | null {
  const found = projects.flatMap((each) => {
    const words = faultOf(fault, `projects.${each}`);
    return words === null ? [] : [`${each}: ${words}`];
  });
  return found.length ? found.join("; ") : null;
}

interface RightsProps {
  /** null: one who is to be made. */
  user: User | null;
  needsToken: () => void;
  done: () => void;
  /** Leaves all as it is. */
  leave?: () => void;
}

/** What a user may do, as a form. */
function Rights({ user, needsToken, done, leave }: RightsProps) {
  const form = useRef<HTMLFormElement>(null);
  useLayoutEffect(() => {
    if (user) form.current?.querySelector("select")?.focus();
  }, []);
  const [name, setName] = useState("");
  const [kind, setKind] = useState(user?.kind ?? "person");
  const [role, setRole] = useState<User["role"]>(user?.role ?? null);
  const [member, setMember] = useState(user ? projectsOf(user, "member") : "");
  const [viewer, setViewer] = useState(user ? projectsOf(user, "viewer") : "");
  const [made, setMade] = useState<string | null>(null);
  const first = useRef<HTMLInputElement>(null);
  const { send, sends, refusal, refuse } = useChange(needsToken, { 409: "name" });
  const store = () => {
    setMade(null);
    const both = wordsIn(viewer).filter((project) => wordsIn(member).includes(project));
    if (!role && both.length) return refuse(twice(both));
    const projects = Object.fromEntries([
      ...wordsIn(viewer).map((project) => [project, "viewer"]),
      ...wordsIn(member).map((project) => [project, "member"]),
    ]) as User["projects"];
    // Whoever has a role has all projects, and no limits.
    const rights = role ? { kind, role } : { kind, role, projects, ...(user ? { limits: user.limits } : {}) };
    const path = `/v1/users/${encodeURIComponent(user?.name ?? name.trim())}`;
    send({ path, method: user ? "PUT" : "POST", body: rights }, () => {
      if (user === null) {
        setMade(name.trim());
        first.current?.focus();
      }
      setName("");
      done();
    });
  };
  return (
    <form
      class="making"
      ref={form}
      onKeyDown={(event) => {
        if (event.key === "Escape") leave?.();
      }}
      onSubmit={(event) => {
        event.preventDefault();
        if (!sends) store();
      }}
    >
      {user === null && (
        <Marked label="Name" fault={faultOf(refusal, "name")}>
          {(marks) => (
            <input
              ref={first}
              value={name}
              required
              maxLength={63}
              placeholder="ada"
              onInput={(event) => setName(event.currentTarget.value)}
              {...marks}
            />
          )}
        </Marked>
      )}
      <label>
        Is
        <select value={kind} onChange={(event) => setKind(event.currentTarget.value as User["kind"])}>
          <option value="person">a person</option>
          <option value="service">a program, such as a pipeline</option>
        </select>
      </label>
      <label>
        May do
        <select value={role ?? ""} onChange={(event) => setRole((event.currentTarget.value || null) as User["role"])}>
          {ROLES.map((each) => (
            <option key={each.words} value={each.role ?? ""}>
              {each.words}
            </option>
          ))}
        </select>
      </label>
      {role === null && (
        <>
          <Marked label="Member of" fault={faultOfProjects(refusal, wordsIn(member))}>
            {(marks) => (
              <input
                value={member}
                placeholder="projects, with commas between"
                onInput={(event) => setMember(event.currentTarget.value)}
                {...marks}
              />
            )}
          </Marked>
          <Marked label="Viewer of" fault={faultOfProjects(refusal, wordsIn(viewer))}>
            {(marks) => (
              <input
                value={viewer}
                placeholder="projects, with commas between"
                onInput={(event) => setViewer(event.currentTarget.value)}
                {...marks}
              />
            )}
          </Marked>
        </>
      )}
      <button type="submit" class="button" disabled={sends}>
        {user ? "Store" : "Make the user"}
      </button>
      {leave && (
        <button type="button" onClick={leave}>
          Leave it
        </button>
      )}
      <Refusal fault={refusal} fields={USER_FIELDS} />
      {user === null && (
        <p role="status" class="quiet">
          {made !== null && `${made} is made.`}
        </p>
      )}
    </form>
  );
}

interface RemoveProps {
  user: User;
  done: () => void;
  needsToken: () => void;
}

/** Takes all rights, which leaves the user and the tokens; or removes both. */
function Remove({ user, done, needsToken }: RemoveProps) {
  const [doubted, setDoubted] = useState<"disable" | "remove" | null>(null);
  const { send, sends, refusal } = useChange(needsToken);
  const path = `/v1/users/${encodeURIComponent(user.name)}`;
  const hasRights = user.role !== null || Object.keys(user.projects).length > 0;
  const act = () => {
    setDoubted(null);
    if (doubted === "remove") send({ path, method: "DELETE" }, done);
    else send({ path, method: "PUT", body: { kind: user.kind, projects: {}, limits: user.limits } }, done);
  };
  const name = <span class="unseen"> {user.name}</span>;
  if (doubted !== null) {
    return (
      <Doubt
        yes={doubted === "remove" ? `Remove ${user.name} and all tokens` : `Take all rights of ${user.name}`}
        no="Leave it"
        act={act}
        leave={() => setDoubted(null)}
      />
    );
  }
  return (
    <>
      {hasRights && (
        <button type="button" disabled={sends} onClick={() => setDoubted("disable")}>
          Disable{name}
        </button>
      )}
      <button type="button" disabled={sends} onClick={() => setDoubted("remove")}>
        Remove{name}
      </button>
      <Refusal fault={refusal} />
    </>
  );
}
