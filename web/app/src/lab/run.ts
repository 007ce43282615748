// Asks the server for a run and reads it as it comes.

import { LabError, Recording } from "./decode.js";
import { write } from "./parameters.js";
import type { Parameters } from "./parameters.js";

const RUN_PATH = "v1/lab/run";
/** Most bytes of a run; the server's own bound is lower. */
const MAX_BYTES = 32 * 1024 * 1024;
/** How often a server that is busy is asked again. */
const TRIES = 5;
const WAIT_MS = 1_000;

/** What a run is asked with. */
export interface RunRequest {
  readonly parameters: Parameters;
  /** `Authorization`, where the server wants a key. */
  readonly headers: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
}

/** Thrown where the server refuses a run; it says why. */
export class RunRefused extends Error {
  override readonly name = "RunRefused";
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** A run with all of its events. */
export async function fetchRun(request: RunRequest): Promise<Recording> {
  const response = await ask(request, TRIES);
  if (!response.ok) throw new RunRefused(response.status, await refusal(response));
  const recording = new Recording();
  for await (const line of lines(response)) recording.accept(line);
  if (!recording.isWhole) throw new LabError("the server broke off");
  return recording;
}

async function ask(request: RunRequest, tries: number): Promise<Response> {
  const { headers, signal } = request;
  const response = await fetch(`${RUN_PATH}?${write(request.parameters)}`, { headers: { ...headers }, signal });
  if (response.status !== 429 || tries <= 1) return response;
  await response.body?.cancel();
  await pause(WAIT_MS, signal);
  return ask(request, tries - 1);
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

/** What a refusal says, in the server's words where it has some. */
async function refusal(response: Response): Promise<string> {
  if (response.status === 401) return "This server wants an API key.";
  const text = (await response.text()).slice(0, 2_000);
  try {
    const message: unknown = JSON.parse(text)?.error?.message;
    if (typeof message === "string") return message.slice(0, 500);
  } catch {
    // No JSON: the status has to do.
  }
  return `The server answered with status ${response.status}.`;
}

async function* lines(response: Response): AsyncGenerator<string> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let chars = 0;
  for (;;) {
    const chunk = await reader?.read();
    if (!chunk || chunk.done) break;
    chars += chunk.value.length;
    if (chars > MAX_BYTES) throw new LabError("the run is too long");
    const parts = (rest + chunk.value).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
  if (rest !== "") yield rest;
}
