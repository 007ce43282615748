// Downloads of models to the server's machine. Who may ask for one is the server's to say.

import { signal } from "@preact/signals";
import { NO_ANSWER, refusalText } from "./presence.js";
import { authorization, lookSoon, requestJson } from "./server.js";
import { changeSettings } from "./settings.js";

export interface Download {
  readonly id: string;
  /** The model as it was asked for. */
  readonly asked: string;
  readonly status: "downloading" | "completed" | "paused" | "failed";
  readonly doneBytes: number;
  /** 0 while it is not known. */
  readonly totalBytes: number;
  readonly bytesPerSecond: number;
  /** Its name on this server, once it is there. */
  readonly model: string | null;
  /** Why it failed. */
  readonly why: string | null;
}

export type Downloads =
  /** The server has not been asked, downloads no models, or none for this reader. */
  | { readonly is: "none" }
  | { readonly is: "offered"; readonly latest: Download | null; readonly refusal: string };

export const downloads = signal<Downloads>({ is: "none" });

const PATH = "api/v1/models/download";
const STATUSES = ["downloading", "completed", "paused", "failed"] as const;

/** How often a download is looked at, ms. */
const LOOK_MS = 500;
/** Longest text of the server that is shown, characters. */
const MAX_TEXT = 500;

let watching: ReturnType<typeof setTimeout> | null = null;

/** Asks the server for its downloads, and follows the one that runs. */
export async function lookAtDownloads(): Promise<void> {
  try {
    const { ok, body } = await requestJson(PATH, { headers: authorization() });
    const { data } = (body ?? {}) as { data?: unknown };
    if (ok && Array.isArray(data)) follow(readDownload(data[0]));
    else downloads.value = { is: "none" };
  } catch {
    downloads.value = { is: "none" };
  }
}

/** Asks the server to download `model`. */
export async function download(model: string): Promise<void> {
  await ask(PATH, "POST", JSON.stringify({ model }));
}

/** Asks the server to stop the download `id`; what it has received is kept. */
export async function stopDownload(id: string): Promise<void> {
  await ask(`${PATH}/status/${encodeURIComponent(id)}`, "DELETE");
}

async function look(id: string): Promise<void> {
  await ask(`${PATH}/status/${encodeURIComponent(id)}`, "GET");
}

async function ask(path: string, method: "GET" | "POST" | "DELETE", sent?: string): Promise<void> {
  const headers = { "content-type": "application/json", ...authorization() };
  try {
    const { ok, status, body } = await requestJson(path, { method, headers, ...(sent !== undefined && { body: sent }) });
    const latest = readDownload(body);
    if (ok && latest !== null) follow(latest);
    else refuse(refusalText(status, body, MAX_TEXT), status !== 404);
  } catch {
    refuse(NO_ANSWER);
  }
}

/** Says why the server did not do what was asked; a server that was started again does not know the latest download. */
function refuse(refusal: string, isKnown = true): void {
  const now = downloads.peek();
  const latest = now.is === "offered" && isKnown ? now.latest : null;
  downloads.value = { is: "offered", latest, refusal };
  lookAgain(latest);
}

/** Looks at `latest` again soon, if it runs. */
function lookAgain(latest: Download | null): void {
  if (watching !== null) clearTimeout(watching);
  watching = latest?.status === "downloading" ? setTimeout(() => void look(latest.id), LOOK_MS) : null;
}

/** Shows `latest`, looks again while it runs, and asks the model once it is there. */
function follow(latest: Download | null): void {
  const before = downloads.peek();
  const ran = before.is === "offered" && before.latest?.status === "downloading" && before.latest.id === latest?.id;
  downloads.value = { is: "offered", latest, refusal: "" };
  lookAgain(latest);
  if (ran && latest?.model) {
    changeSettings({ model: latest.model });
    lookSoon();
  }
}

/** Reads a download from the server's JSON; `null` if it is not one. */
export function readDownload(value: unknown): Download | null {
  const told = (value ?? {}) as Record<string, unknown>;
  const [id, asked] = [textOf(told["job_id"]), textOf(told["requested"])];
  const status = STATUSES.find((one) => one === told["status"]);
  if (id === null || asked === null || status === undefined) return null;
  const [doneBytes, totalBytes, bytesPerSecond] = [told["downloaded_bytes"], told["total_size_bytes"], told["bytes_per_second"]].map(countOf) as [number, number, number];
  return { id, asked, status, doneBytes, totalBytes, bytesPerSecond, model: textOf(told["model"]), why: textOf(told["error"]) };
}

/** Where a download stands, in words. */
export function downloadText({ asked, status, doneBytes, totalBytes, bytesPerSecond, model, why }: Download): string {
  switch (status) {
    case "downloading": {
      if (totalBytes === 0) return "looking for it";
      const restS = bytesPerSecond > 0 ? (totalBytes - doneBytes) / bytesPerSecond : null;
      const rest = restS === null || restS < 1 ? "" : `, ${durationText(restS)} left`;
      return `${megabytes(doneBytes)} of ${megabytes(totalBytes)} MB${rest}`;
    }
    case "completed":
      return `${model ?? asked} is on the server. Your next question goes to it.`;
    case "paused":
      return `stopped at ${megabytes(doneBytes)} of ${megabytes(totalBytes)} MB; the next download of ${asked} goes on there`;
    case "failed":
      return why ?? "It failed. The server’s log says why.";
  }
}

function durationText(seconds: number): string {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(bytes < 1e8 ? 1 : 0);
}

function textOf(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value.slice(0, MAX_TEXT) : null;
}

function countOf(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) && value > 0 ? value : 0;
}
