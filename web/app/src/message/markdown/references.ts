// Links and footnotes whose targets stand elsewhere in the text, mostly behind them: they are shown as
// they were written until their target has come.

import { element, withText } from "./elements.js";
import { linkTo } from "./links.js";

/** Labels that are kept; those of further definitions stay text. */
const MOST_LABELS = 1_000;

/** References that wait for their targets. */
const MOST_WAITING = 5_000;

type Target = { readonly is: "link"; readonly href: string } | { readonly is: "note"; readonly element: HTMLElement; readonly number: number };

/** A reference on the page: its element, and what of that is the link's text. */
interface Waiting {
  readonly whole: HTMLElement;
  readonly text: HTMLElement | null;
}

/** The references of one message. */
export class References {
  readonly #targets = new Map<string, Target>();
  readonly #waiting = new Map<string, Waiting[]>();
  #waits = 0;
  #notes = 0;

  /** A reference to `label` as it is written: `[`, then `text`, then `]` and `tail`. */
  reference(label: string, text: HTMLElement, tail: string, isSettled: boolean): HTMLElement {
    const whole = element("span", "reference");
    whole.append("[", text, `]${tail}`);
    if (isSettled) this.#add(label, { whole, text });
    return whole;
  }

  /** A mark of the footnote `label`, as it is written. */
  mark(label: string, isSettled: boolean): HTMLElement {
    const whole = withText(element("span", "reference"), `[${label}]`);
    if (isSettled) this.#add(label, { whole, text: null });
    return whole;
  }

  /** References to `label` lead to `href`. The first definition counts. */
  define(label: string, href: string): void {
    this.#target(label, { is: "link", href });
  }

  /** `note` will hold the text of the footnote `label`; gets its number. */
  defineNote(label: string, note: HTMLElement): void {
    const number = this.#notes + 1;
    if (!this.#target(label, { is: "note", element: note, number })) return;
    this.#notes = number;
    note.append(withText(element("sup"), String(number)), " ");
  }

  #target(label: string, target: Target): boolean {
    if (this.#targets.has(label) || this.#targets.size >= MOST_LABELS) return false;
    this.#targets.set(label, target);
    for (const waiting of this.#waiting.get(label) ?? []) show(waiting, target);
    this.#waiting.delete(label);
    return true;
  }

  #add(label: string, waiting: Waiting): void {
    const target = this.#targets.get(label);
    // It is not in its place on the page before its text has been put there.
    if (target) return queueMicrotask(() => show(waiting, target));
    if (this.#waits >= MOST_WAITING) return;
    this.#waits += 1;
    const others = this.#waiting.get(label);
    if (others) others.push(waiting);
    else this.#waiting.set(label, [waiting]);
  }
}

function show({ whole, text }: Waiting, target: Target): void {
  if (target.is === "note") return text === null ? whole.replaceChildren(noteMark(target)) : undefined;
  // No link may hold another.
  const link = text === null || text.querySelector("a") ? null : linkTo(target.href);
  if (link === null || text === null) return;
  link.append(...text.childNodes);
  whole.replaceChildren(link);
}

function noteMark({ element: note, number }: Extract<Target, { is: "note" }>): HTMLElement {
  const button = withText(element("button", "note-mark"), String(number)) as HTMLButtonElement;
  button.type = "button";
  button.setAttribute("aria-label", `Footnote ${number}`);
  button.addEventListener("click", () => note.scrollIntoView({ block: "center" }));
  const raised = element("sup");
  raised.append(button);
  return raised;
}
