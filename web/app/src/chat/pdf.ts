// The page's side of reading PDFs: a worker for each, ended when it is done or takes too long.

import type { PdfNews } from "./pdf_text.js";

/** Largest PDF, bytes: most of it is pictures. */
export const MAX_PDF_BYTES = 32 << 20;

/** How long reading may take, ms: a thousand pages take a few seconds. */
const PATIENCE_MS = 30_000;

const REFUSALS = {
  password: "wants a password",
  unreadable: "cannot be read as a PDF",
  pictures: "has no text: its pages are pictures",
  long: "has more text than a model reads",
  slow: "takes too long to read",
} as const;

/** Whether `bytes` begin as PDFs do (ISO 32000-2, 7.5.2). */
export function isPdf(bytes: ArrayBuffer): boolean {
  return new TextDecoder("latin1").decode(bytes.slice(0, 5)) === "%PDF-";
}

/**
 * The text of the PDF `bytes`, which are gone then.
 *
 * @throws {Error} that says in words why there is none.
 */
export async function pdfText(bytes: ArrayBuffer): Promise<string> {
  const worker = new Worker(new URL("./pdf-worker.js", import.meta.url), { type: "module", name: "pdf" });
  let timer: ReturnType<typeof setTimeout> | undefined;
  const news = await new Promise<PdfNews | { refused: "slow" }>((resolve) => {
    // PDF.js says by itself that it is ready when it finds itself in a worker.
    worker.onmessage = ({ data }: MessageEvent<PdfNews | object>) => ("text" in data || "refused" in data) && resolve(data);
    worker.onerror = () => resolve({ refused: "unreadable" });
    timer = setTimeout(() => resolve({ refused: "slow" }), PATIENCE_MS);
    worker.postMessage(bytes, [bytes]);
  });
  clearTimeout(timer);
  worker.terminate();
  if ("refused" in news) throw new Error(REFUSALS[news.refused]);
  return news.text;
}
