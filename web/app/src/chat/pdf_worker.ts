// The worker's entry: one PDF comes, its text goes back.

import { readPdf } from "./pdf_text.js";

const scope = globalThis as unknown as Worker;
scope.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => void readPdf(new Uint8Array(data)).then((news) => scope.postMessage(news));
