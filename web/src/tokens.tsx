// Tokens: one's own, or for an administrator those of all: made here and shown once, revoked, seen when used last.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { MadeToken, Token, WhoAmI } from "./api";
import { useAnswer, useChange } from "./asking";
import { Wide } from "./charts";
import { Doubt, faultOf, Marked, Refusal } from "./doubt";
import { Pages, usePages } from "./pages";
import { may } from "./rights";
import { ago } from "./words";

const DAY_SECONDS = 86_400;
/** For how many days a token is good: what one usually wants first. */
const DAYS = [90, 30, 7, 1, 365];
const SCOPES: { scope: Token["scope"]; words: string }[] = [
  { scope: "submit", words: "submit: read, submit, change own jobs" },
  { scope: "read", words: "read: only read" },
  { scope: "operate", words: "operate: all that its user may" },
];

interface TokensProps {
  caller: WhoAmI | null;
  now: number;
  needsToken: () => void;
}

export function Tokens({ caller, now, needsToken }: TokensProps) {
  const [found, again] = useAnswer<{ tokens: Token[] }>("/v1/tokens");
  const [made, setMade] = useState<MadeToken | null>(null);
  const [all, showAll] = useState(false);
  const ofAll = may(caller, "administer");
  const tokens = found?.tokens ?? [];
  const good = tokens.filter((each) => isGood(each, now));
  const { shown, page, turn } = usePages(all ? tokens : good);
  if (!found) return <p class="quiet empty">Loading …</p>;
  return (
    <article aria-labelledby="tokens">
      <h1 id="tokens">{ofAll ? "Tokens" : "My tokens"}</h1>
      <p class="quiet">
        A program sends one as <code>Authorization: Bearer …</code>; the command line keeps it after{" "}
        <code>optimus login</code>. The service knows only its hash.
      </p>
      {made && <Secret key={made.token.id} made={made} close={() => setMade(null)} />}
      {may(caller, "make tokens") && (
        <NewToken
          caller={caller}
          needsToken={needsToken}
          asks={() => setMade(null)}
          done={(next) => {
            setMade(next);
            again();
          }}
        />
      )}
      {tokens.length > good.length && (
        <div class="row">
          <button type="button" aria-pressed={all} onClick={() => showAll(!all)}>
            also revoked and expired <span class="quiet">{tokens.length - good.length}</span>
          </button>
        </div>
      )}
      {shown.length === 0 ? (
        <p class="quiet empty">{ofAll ? "There is no token." : "You have no token."}</p>
      ) : (
        <Wide label="Tokens">
          <table class="tokens">
            <thead>
              <tr>
                <th scope="col">token</th>
                {ofAll && <th scope="col">user</th>}
                <th scope="col">scope</th>
                <th scope="col">last used</th>
                <th scope="col">good until</th>
                <th scope="col">
                  <span class="unseen">what can be done</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {shown.map((token) => (
                <tr key={token.id} class={isGood(token, now) ? "" : "ended"}>
                  <th scope="row">
                    {token.name || <span class="quiet">without a name</span>}
                    <span class="under">
                      {token.id} · made {ago(token.created_at, now)} by {token.created_by}
                    </span>
                  </th>
                  {ofAll && <td>{token.user}</td>}
                  <td>
                    {token.scope}
                    {token.projects && <span class="under">only {token.projects.join(", ")}</span>}
                  </td>
                  <td>{token.last_used_at === null ? "never" : ago(token.last_used_at, now)}</td>
                  <td>{endOf(token)}</td>
                  <td class="figure">
                    {isGood(token, now) && may(caller, "make tokens") && (
                      <Revoke
                        token={token}
                        isOwn={token.id === caller?.token_id}
                        done={again}
                        needsToken={needsToken}
                      />
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
      <Pages of="the tokens" total={(all ? tokens : good).length} page={page} turn={turn} />
    </article>
  );
}

export function isGood({ revoked_at: revoked, expires_at: end }: Token, now: number): boolean {
  return revoked === null && (end === null || Date.parse(end) > now);
}

function day(moment: string): string {
  return new Date(moment).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

function endOf({ revoked_at: revoked, expires_at: end }: Token): string {
  if (revoked !== null) return `revoked ${day(revoked)}`;
  return end === null ? "it is revoked" : day(end);
}

/** The secret of a token that was just made: the only time that anybody sees it. */
function Secret({ made, close }: { made: MadeToken; close: () => void }) {
  const [copied, setCopied] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const copy = () =>
    void navigator.clipboard?.writeText(made.secret).then(
      () => setCopied(true),
      () => undefined,
    );
  return (
    <section class="why secret" aria-labelledby="secret">
      <h2 id="secret">
        Token of {made.token.user}: {made.token.name || made.token.id}
      </h2>
      <p>Keep it now: it cannot be shown again.</p>
      <input
        type="text"
        ref={field}
        readOnly
        aria-label="The token's secret"
        value={made.secret}
        onFocus={(event) => event.currentTarget.select()}
      />
      <div class="actions">
        <button type="button" onClick={copy}>
          Copy
        </button>
        <button type="button" onClick={close}>
          I have it
        </button>
        <span role="status">{copied && "copied"}</span>
      </div>
    </section>
  );
}

interface NewTokenProps {
  caller: WhoAmI | null;
  needsToken: () => void;
  /** Called when a token is asked for: the former secret is no answer to that. */
  asks: () => void;
  done: (made: MadeToken) => void;
}

const TOKEN_FIELDS = ["name", "user", "scope", "expires_seconds", "projects"];

function NewToken({ caller, needsToken, asks, done }: NewTokenProps) {
  const [name, setName] = useState("");
  const [user, setUser] = useState("");
  const [scope, setScope] = useState<Token["scope"]>("submit");
  const [projects, setProjects] = useState("");
  const [days, setDays] = useState(String(DAYS[0]));
  const { send, sends, refusal } = useChange(needsToken, { 404: "user" });
  // OPTIMUS_TOKEN and loopback are no users: they make tokens for users only.
  const needsUser = caller?.token_id === null && (caller.name === "bootstrap" || caller.name === "local");
  const make = () => {
    const only = wordsIn(projects);
    const body = {
      name: name.trim(),
      scope,
      user: user.trim() || null,
      projects: only.length ? only : null,
      expires_seconds: days === "" ? null : Number(days) * DAY_SECONDS,
    };
    asks();
    send({ path: "/v1/tokens", method: "POST", body }, async (answer) => {
      done((await answer.json()) as MadeToken);
      setName("");
    });
  };
  return (
    <details class="new">
      <summary>Make a token</summary>
      <form
        class="making"
        onSubmit={(event) => {
          event.preventDefault();
          if (!sends) make();
        }}
      >
        <Marked label="What it is for" fault={faultOf(refusal, "name")}>
          {(marks) => (
            <input
              value={name}
              maxLength={100}
              placeholder="laptop"
              onInput={(event) => setName(event.currentTarget.value)}
              {...marks}
            />
          )}
        </Marked>
        {may(caller, "administer") && (
          <Marked label="User" fault={faultOf(refusal, "user")}>
            {(marks) => (
              <input
                value={user}
                required={needsUser}
                placeholder={needsUser ? "whose it is" : "yourself"}
                onInput={(event) => setUser(event.currentTarget.value)}
                {...marks}
              />
            )}
          </Marked>
        )}
        <Marked label="Scope" fault={faultOf(refusal, "scope")}>
          {(marks) => (
            <select
              value={scope}
              onChange={(event) => setScope(event.currentTarget.value as Token["scope"])}
              {...marks}
            >
              {SCOPES.map((each) => (
                <option key={each.scope} value={each.scope}>
                  {each.words}
                </option>
              ))}
            </select>
          )}
        </Marked>
        <Marked label="Good for" fault={faultOf(refusal, "expires_seconds")}>
          {(marks) => (
            <select value={days} onChange={(event) => setDays(event.currentTarget.value)} {...marks}>
              {DAYS.map((each) => (
                <option key={each} value={String(each)}>
                  {each} {each === 1 ? "day" : "days"}
                </option>
              ))}
              <option value="">ever, until it is revoked</option>
            </select>
          )}
        </Marked>
        <Marked label="Only these projects" fault={faultOf(refusal, "projects")}>
          {(marks) => (
            <input
              value={projects}
              placeholder="all of the user's"
              onInput={(event) => setProjects(event.currentTarget.value)}
              {...marks}
            />
          )}
        </Marked>
        <button type="submit" class="button" disabled={sends}>
          Make it
        </button>
        <Refusal fault={refusal} fields={TOKEN_FIELDS} />
      </form>
    </details>
  );
}

/** Names between commas or spaces. */
export function wordsIn(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

interface RevokeProps {
  token: Token;
  /** Whether it is the one that this page uses. */
  isOwn: boolean;
  done: () => void;
  needsToken: () => void;
}

function Revoke({ token, isOwn, done, needsToken }: RevokeProps) {
  const [doubted, setDoubted] = useState(false);
  const { send, sends, refusal } = useChange(needsToken);
  const revoke = () => {
    setDoubted(false);
    send({ path: `/v1/tokens/${encodeURIComponent(token.id)}`, method: "DELETE" }, done);
  };
  const name = token.name || token.id;
  return (
    <div class="actions small">
      {doubted ? (
        <Doubt
          yes={isOwn ? "Revoke it and sign out" : "Revoke it"}
          no="Keep it"
          act={revoke}
          leave={() => setDoubted(false)}
        />
      ) : (
        <button type="button" disabled={sends} onClick={() => setDoubted(true)}>
          Revoke<span class="unseen"> {name}</span>
        </button>
      )}
      <Refusal fault={refusal} />
    </div>
  );
}
