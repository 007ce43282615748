// Files for a question: bounded in number and size. PDFs give their text, and pictures go to models
// that may see them; what else is no text is refused.

import type { Attachment } from "./conversation.js";
import type { ModelCard } from "./server.js";
import { imageType, imageUrl } from "./images.js";
import { MAX_PDF_BYTES, isPdf, pdfText } from "./pdf.js";

const MAX_FILES = 10;

/** Largest text, bytes: more than the context of most models holds. */
const MAX_BYTES = 512 << 10;

/** What could be read of `chosen` for `model`, and what is to be said of the rest. */
export async function readFiles(
  chosen: readonly File[],
  attached: readonly Attachment[],
  model: ModelCard | null,
): Promise<{ read: Attachment[]; refused: string | null }> {
  const read: Attachment[] = [];
  let refused: string | null = null;
  for (const file of chosen) {
    if (attached.length + read.length >= MAX_FILES) return { read, refused: `At most ${MAX_FILES} files at once.` };
    try {
      const contents = await contentsOf(file, model);
      read.push({ name: freeName(file.name, [...attached, ...read]), ...contents });
    } catch (error) {
      refused = `${file.name} ${error instanceof Error ? error.message : "cannot be read"}.`;
    }
  }
  return { read, refused };
}

/** What `model` gets of `file`; throws an `Error` that says what is wrong with the file. */
async function contentsOf(file: File, model: ModelCard | null): Promise<{ text: string } | { image: string }> {
  if (file.size > MAX_PDF_BYTES) throw new Error(`is larger than ${MAX_PDF_BYTES >> 20} MB`);
  const bytes = await file.arrayBuffer();
  const type = imageType(bytes);
  if (type !== null && model?.mayTakeImages === false) throw new Error(`is a picture, and ${model.id} reads text only`);
  if (type !== null) return { image: await imageUrl(bytes, type) };
  if (isPdf(bytes)) return { text: await pdfText(bytes) };
  if (file.size > MAX_BYTES) throw new Error(`is larger than ${MAX_BYTES >> 10} kB`);
  const text = decoded(bytes);
  if (text === null || text.includes("\0")) throw new Error("is neither text nor a PDF nor a picture");
  return { text };
}

function decoded(bytes: ArrayBuffer): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** `name`, or the first of `name (2)`, … that is not taken. */
function freeName(name: string, taken: readonly Attachment[]): string {
  const isTaken = (name: string): boolean => taken.some((file) => file.name === name);
  let free = name;
  for (let number = 2; isTaken(free); number += 1) free = `${name} (${number})`;
  return free;
}
