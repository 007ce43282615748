// The question that is being written: its text and its files.

import { signal } from "@preact/signals";
import type { Attachment } from "./conversation.js";

export const draft = signal("");
export const files = signal<readonly Attachment[]>([]);
