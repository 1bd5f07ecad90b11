// The API for people to read and to try: the service's OpenAPI document in Swagger UI, beside a list of all calls.
import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import "swagger-ui-dist/swagger-ui.css";
import { call, NeedsToken, token } from "./api";
import "./style.css";
import "./docs.css";
import { nextTheme, startTheme, themeSign } from "./theme";

interface Operation {
  tags?: string[];
  operationId?: string;
  summary?: string;
}
interface OpenApi {
  paths: Record<string, Record<string, Operation>>;
}
type Call = [method: string, path: string, operation: Operation];

const WITHOUT_TAG = "default";

function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  text = "",
  attributes: Record<string, string> = {},
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** All calls by their tag, in the order of the document. */
function byTag({ paths }: OpenApi): Map<string, Call[]> {
  const found = new Map<string, Call[]>();
  for (const [path, methods] of Object.entries(paths))
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? WITHOUT_TAG;
      found.set(tag, [...(found.get(tag) ?? []), [method, path, operation]]);
    }
  return found;
}

function showContents(api: OpenApi): void {
  const place = document.getElementById("contents");
  for (const [tag, calls] of byTag(api)) {
    const group = element("details");
    group.open = window.matchMedia("(min-width: 62rem)").matches;
    const list = element("ul");
    for (const [method, path, { operationId = "" }] of calls) {
      const link = element("a", "", { href: `#/${tag}/${operationId}` });
      link.append(element("span", method.toUpperCase(), { class: "method" }), ` ${path}`);
      link.addEventListener("click", () => open(tag, operationId));
      const item = element("li");
      item.append(link);
      list.append(item);
    }
    group.append(element("summary", tag), list);
    place?.append(group);
  }
}

/** Show a call as if its heading had been clicked; the address alone would only do so when the page is opened. */
function open(tag: string, operationId: string): void {
  const block = document.getElementById(`operations-${tag}-${operationId}`);
  if (!block) return;
  if (!block.classList.contains("is-open")) block.querySelector<HTMLElement>(".opblock-summary-control")?.click();
  block.scrollIntoView();
}

function show(api: OpenApi): void {
  showContents(api);
  SwaggerUI({
    spec: api,
    domNode: document.getElementById("content"),
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    validatorUrl: null, // nothing is asked of anybody else
    requestInterceptor: (request: { headers: Record<string, string> }) => {
      const known = token();
      if (known && !request.headers.Authorization) request.headers.Authorization = `Bearer ${known}`;
      return request;
    },
  });
}

function say(words: string): void {
  const state = document.getElementById("state");
  if (state) state.textContent = words;
}

function startColours(): void {
  const button = document.getElementById("colours");
  const name = (theme: string) => {
    button?.setAttribute("aria-label", `Colours: ${theme}`);
    if (button) button.textContent = themeSign(theme);
  };
  name(startTheme());
  button?.addEventListener("click", () => name(nextTheme()));
}

startColours();
call("/openapi.json")
  .then(async (answer) => show((await answer.json()) as OpenApi))
  .catch((error: unknown) => {
    if (error instanceof NeedsToken) {
      say("This service asks for its token: sign in on its ");
      document
        .getElementById("state")
        ?.append(element("a", "page", { href: "/" }), ", then come back in the same tab.");
    } else say("The service cannot be reached.");
  });
