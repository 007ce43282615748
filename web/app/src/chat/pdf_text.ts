// What a PDF says, page by page: read in a worker, because PDFs come from anybody and may be made to
// take for ever.

import { getDocument } from "unpdf/pdfjs";

/** What came of reading a PDF. */
export type PdfNews = { readonly text: string } | { readonly refused: "password" | "unreadable" | "pictures" | "long" };

/** Longest text that is wanted, UTF-16 units. */
export const MAX_PDF_TEXT = 512 << 10;

/** The text of the PDF `bytes`, its pages apart by an empty line. */
export async function readPdf(bytes: Uint8Array): Promise<PdfNews> {
  try {
    // What is here for pictures and fonts alone is left out; nothing is fetched, nothing is evaluated.
    const loading = getDocument({ data: bytes, isEvalSupported: false, useWorkerFetch: false, stopAtErrors: false, verbosity: 0 });
    const document = await loading.promise;
    let text = "";
    for (let number = 1; number <= document.numPages && text.length <= MAX_PDF_TEXT; number += 1) {
      const { items } = await (await document.getPage(number)).getTextContent();
      text += `${items.map((item) => ("str" in item ? item.str + (item.hasEOL ? "\n" : "") : "")).join("").trim()}\n\n`;
    }
    if (text.trim() === "") return { refused: "pictures" };
    return text.length > MAX_PDF_TEXT ? { refused: "long" } : { text: `${text.trim()}\n` };
  } catch (error) {
    return { refused: error instanceof Error && error.name === "PasswordException" ? "password" : "unreadable" };
  }
}
