// A history from a file of the reader's choice.

import type { ComponentType } from "preact";

import { MAX_HISTORY_BYTES, readHistory } from "./history.js";
import type { WorldHistory } from "./history.js";
import { HistoryView } from "./view.js";
import type { HistoryViewProps } from "./view.js";

/** A history, the name of its file, and what shows it. */
export interface OpenedHistory {
  readonly name: string;
  readonly history: WorldHistory;
  readonly View: ComponentType<HistoryViewProps>;
}

/**
 * Reads a history.
 *
 * @throws Error, with what to do, if the file is too large, cannot be read, or has no history.
 */
export async function openFile(file: File): Promise<OpenedHistory> {
  if (file.size > MAX_HISTORY_BYTES) throw new Error(`${file.name} has more than ${MAX_HISTORY_BYTES >> 20} MiB.`);
  const history = readHistory(await file.text());
  if (history === null) throw new Error(`${file.name} has no history: it is what make world SEED=N prints.`);
  return { name: file.name, history, View: HistoryView };
}
