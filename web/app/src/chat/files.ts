// Text files for a question: bounded in number and size, and only what is text.

import type { TextFile } from "./conversation.js";

const MAX_FILES = 10;

/** Largest file, bytes: more than the context of most models holds. */
const MAX_BYTES = 512 << 10;

/** What could be read of `chosen`, and what is to be said of the rest. */
export async function readFiles(
  chosen: readonly File[],
  attached: readonly TextFile[],
): Promise<{ read: TextFile[]; refused: string | null }> {
  const read: TextFile[] = [];
  let refused: string | null = null;
  for (const file of chosen) {
    if (attached.length + read.length >= MAX_FILES) return { read, refused: `At most ${MAX_FILES} files at once.` };
    const text = file.size > MAX_BYTES ? null : await textOf(file);
    if (text !== null) read.push({ name: freeName(file.name, [...attached, ...read]), text });
    else if (file.size > MAX_BYTES) refused = `${file.name} is larger than ${MAX_BYTES >> 10} kB.`;
    else refused = `${file.name} is not a text file.`;
  }
  return { read, refused };
}

/** The text of `file`; `null` if it is none. */
async function textOf(file: File): Promise<string | null> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** `name`, or the first of `name (2)`, … that is not taken. */
function freeName(name: string, taken: readonly TextFile[]): string {
  const isTaken = (name: string): boolean => taken.some((file) => file.name === name);
  let free = name;
  for (let number = 2; isTaken(free); number += 1) free = `${name} (${number})`;
  return free;
}
