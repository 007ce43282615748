// The book's pages are whole without this script. It adds the search, the theme button, buttons
// that copy code, and on narrow windows the list of chapters behind a button.

const html = document.documentElement;

// --- Theme: system, light, dark, kept for all pages of this server.

const THEMES = ["system", "light", "dark"];
const themeButton = document.querySelector("button.theme");

function currentTheme() {
  return html.dataset.theme ?? "system";
}

function showTheme() {
  themeButton.textContent = { system: "◐", light: "☀", dark: "☾" }[currentTheme()];
  const said = `Theme: ${currentTheme()}`;
  themeButton.title = said;
  themeButton.setAttribute("aria-label", said);
}

themeButton.hidden = false;
showTheme();
themeButton.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length];
  if (next === "system") delete html.dataset.theme;
  else html.dataset.theme = next;
  showTheme();
  try {
    localStorage.setItem("loquent:theme", next);
  } catch {
    // No storage: the theme lasts as long as the page.
  }
});

// --- The list of chapters.

const menu = document.querySelector("button.menu");

function setMenu(open) {
  html.classList.toggle("menu-open", open);
  menu.setAttribute("aria-expanded", String(open));
}

menu.addEventListener("click", () => setMenu(!html.classList.contains("menu-open")));
document.querySelector(".chapters [aria-current]")?.scrollIntoView({ block: "nearest" });
document.querySelector(".chapters").addEventListener("click", (event) => {
  if (event.target instanceof HTMLAnchorElement) setMenu(false);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") setMenu(false);
});

// --- Copy.

/** What is to be typed of a session: the lines behind a prompt, if there is one, else all. */
function typed(text) {
  const lines = text.split("\n").filter((line) => line.startsWith("$ "));
  return lines.length > 0 ? `${lines.map((line) => line.slice(2)).join("\n")}\n` : text;
}

for (const head of document.querySelectorAll(".code-head")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const code = head.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(typed(code.textContent));
      button.textContent = "Copied";
    } catch {
      // Only secure origins have a clipboard: select, so that a key press copies.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  head.append(button);
}

// --- Search: all words have to be in a section; titles count most.

const MOST_FOUND = 12;
const input = document.querySelector(".search input");
const list = document.querySelector("#found");
/** @type {Promise<[string, string, string, string][]> | undefined} */
let index;

function loadIndex() {
  index ??= fetch(html.dataset.search).then((response) => {
    if (!response.ok) throw new Error(`the search index: ${response.status}`);
    return response.json();
  });
  // Another attempt may be luckier.
  index.catch(() => (index = undefined));
  return index;
}

function score(words, [, chapter, title, text]) {
  const [inChapter, inTitle, inText] = [chapter, title, text].map((it) => it.toLowerCase());
  let sum = 0;
  for (const word of words) {
    const found = (inTitle.includes(word) ? 8 : 0) + (inChapter.includes(word) ? 4 : 0) + (inText.includes(word) ? 1 : 0);
    if (found === 0) return 0;
    sum += found;
  }
  return sum;
}

/** The text around the first word that is found. */
function excerpt(text, words) {
  const lower = text.toLowerCase();
  const at = Math.max(0, Math.min(...words.map((it) => lower.indexOf(it)).filter((it) => it >= 0), text.length));
  const from = Math.max(0, at - 40);
  return `${from > 0 ? "…" : ""}${text.slice(from, from + 140).replace(/\s+/g, " ")}…`;
}

function foundItem([path, chapter, title, text], words) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = `${html.dataset.root}${path}`;
  const name = document.createElement("strong");
  name.textContent = title && title !== chapter ? `${chapter} › ${title}` : chapter;
  const sample = document.createElement("span");
  sample.textContent = excerpt(text, words);
  link.append(name, sample);
  item.append(link);
  return item;
}

async function search() {
  const asked = input.value;
  const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) {
    list.hidden = true;
    return;
  }
  let sections;
  try {
    sections = await loadIndex();
  } catch {
    list.replaceChildren(note("The search could not be loaded."));
    list.hidden = false;
    return;
  }
  if (asked !== input.value) return;
  const found = sections
    .map((section) => [score(words, section), section])
    .filter(([points]) => points > 0)
    .sort(([a], [b]) => b - a)
    .slice(0, MOST_FOUND)
    .map(([, section]) => foundItem(section, words));
  list.replaceChildren(...(found.length > 0 ? found : [note("Nothing found.")]));
  list.hidden = false;
}

function note(text) {
  const item = document.createElement("li");
  item.textContent = text;
  return item;
}

/** Moves the focus by `step` through the input and what was found. */
function move(step) {
  const stops = [input, ...list.querySelectorAll("a")];
  const next = stops[stops.indexOf(document.activeElement) + step];
  next?.focus();
}

input.addEventListener("focus", () => loadIndex().catch(() => {}));
input.addEventListener("input", search);
document.querySelector(".search").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Escape") {
    list.hidden = true;
    input.focus();
  } else if (event.key === "Enter" && event.target === input) {
    list.querySelector("a")?.click();
  }
});
document.addEventListener("keydown", (event) => {
  const writes = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !writes && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    input.focus();
  }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".search")) list.hidden = true;
});
list.addEventListener("click", () => (list.hidden = true));
