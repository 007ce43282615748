// The figures of the last minutes, column by column, as the charts read them.

import type { Figure, Opening } from "./events.js";

/** Seconds without a row that are drawn as a gap. */
const GAP_S = 2.5;
/** Most rows that are kept. */
const MAX_ROWS = 3_600;

/** Grows by a row each second, and forgets what is older than `lengthS`. */
export class History {
  #columns: readonly string[] = [];
  #rows: (readonly Figure[])[] = [];
  /** The wall clock, in seconds, when the server's clock was 0. */
  #startS = 0;
  #lengthS = 600;

  /** Begins with what the server remembers; the page's own memory of it before is the same. */
  open({ columns, rows, historyS }: Opening, nowS: number): void {
    this.#columns = columns;
    this.#lengthS = Math.max(60, Math.min(historyS, MAX_ROWS));
    this.#rows = [];
    const last = rows.at(-1)?.[this.#index("at_s")] ?? null;
    this.#startS = last === null ? 0 : nowS - last;
    rows.forEach((row) => this.#push(row));
  }

  add(row: readonly Figure[], nowS: number): void {
    const at = row[this.#index("at_s")] ?? null;
    if (at === null) return;
    if (this.#startS === 0) this.#startS = nowS - at;
    this.#push(row);
  }

  #push(row: readonly Figure[]): void {
    const at = this.#index("at_s");
    const [before, now] = [this.#rows.at(-1)?.[at] ?? null, row[at] ?? null];
    if (now === null || (before !== null && now <= before)) return;
    if (before !== null && now - before > GAP_S) this.#rows.push(row.map((_, column) => (column === at ? before + 1 : null)));
    this.#rows.push(row);
    const first = this.#rows.findIndex((one) => (one[at] ?? 0) > now - this.#lengthS);
    if (first > 0) this.#rows.splice(0, first);
  }

  /** The figures called `name`, oldest first; all `null` if the server has no such. */
  column(name: string): Figure[] {
    const at = this.#index(name);
    return this.#rows.map((row) => row[at] ?? null);
  }

  /** When the rows were taken, on the wall clock, in seconds. */
  times(): number[] {
    const at = this.#index("at_s");
    return this.#rows.map((row) => this.#startS + (row[at] ?? 0));
  }

  /** The newest figure called `name`. */
  latest(name: string): Figure {
    return this.#rows.at(-1)?.[this.#index(name)] ?? null;
  }

  /** The newest `name` that there was within the last `seconds`: percentiles come and go. */
  recent(name: string, seconds: number): Figure {
    const at = this.#index(name);
    return this.#rows.slice(-seconds).findLast((row) => (row[at] ?? null) !== null)?.[at] ?? null;
  }

  /** The sum of `name` over all rows. */
  sum(name: string): number {
    return this.column(name).reduce((sum: number, figure) => sum + (figure ?? 0), 0);
  }

  get isEmpty(): boolean {
    return this.#rows.length === 0;
  }

  get lengthS(): number {
    return this.#lengthS;
  }

  #index(name: string): number {
    return this.#columns.indexOf(name);
  }
}
