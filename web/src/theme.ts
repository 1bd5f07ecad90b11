// Colours: those of the machine, or one's choice, which is kept. Also told to Swagger UI, which has a class for dark ones.
const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];
const SIGNS: Record<string, string> = { dark: "◑", light: "○", auto: "◐" };
const PLACE = "optimus-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");

export function theme(): Theme {
  const kept = localStorage.getItem(PLACE) as Theme | null;
  return kept && THEMES.includes(kept) ? kept : "auto";
}

export function themeSign(name: string): string {
  return SIGNS[name] ?? "";
}

function use(name: Theme): Theme {
  const root = document.documentElement;
  if (name === "auto") delete root.dataset.theme;
  else root.dataset.theme = name;
  root.classList.toggle("dark-mode", name === "dark" || (name === "auto" && dark.matches));
  return name;
}

/** Uses what is kept, and follows the machine. */
export function startTheme(): Theme {
  dark.addEventListener("change", () => use(theme()));
  return use(theme());
}

export function nextTheme(): Theme {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length] ?? "auto";
  localStorage.setItem(PLACE, next);
  return use(next);
}
