// One answer on its way to the page: from the question, or from what a reload left, to its end.

import { type Answer, type AnswerOptions, type ChatRequest, type TransportName, resumeChat, streamChat } from "@loquent/client";
import { LiveMessage } from "../message/live.js";
import type { Message } from "../message/model.js";
import type { AnswerReference, RequestMessage } from "./conversation.js";
import { explained, givenUp } from "./explain.js";
import { atReadingPace } from "./reading_pace.js";
import { chosenModel, isDemonstration } from "./server.js";
import { type Instructions, requestParameters } from "./preset.js";
import { settings } from "./settings.js";

export const ENDPOINT = "v1/chat/completions";

/** How often it is checked whether anything has come, ms. */
const WATCH_MS = 1_000;

/** What the page wants to know of a running answer. */
export interface RunningListener {
  onTransport(transport: TransportName): void;
  /** More of it is there. */
  onProgress(running: RunningAnswer): void;
  onEnd(running: RunningAnswer, error: unknown): void;
}

export class RunningAnswer {
  #live: LiveMessage;
  readonly #stop = new AbortController();
  #answer: Answer | null = null;
  #heardAt = Date.now();
  #givenUp: Error | null = null;

  constructor(
    readonly conversation: string,
    message: Message,
    readonly listener: RunningListener,
  ) {
    this.#live = new LiveMessage(message);
  }

  /** The answer as it is shown. */
  get live(): LiveMessage {
    return this.#live;
  }

  get id(): string {
    return this.#live.message.id;
  }

  /** Asks `messages` with the parameters of `instructions`, and shows the answer; if the last of them is an answer, what comes continues it. */
  ask(messages: readonly RequestMessage[], instructions: Instructions): void {
    const { apiKey } = settings.peek();
    const key = apiKey.trim();
    const options = { ...this.#options(), ...(key !== "" && { apiKey: key }) };
    void this.#show(streamChat({ ...options, url: ENDPOINT, body: requestBody(messages, instructions) }));
  }

  /** Goes on with the answer that a reload of this tab cut; `false` if nothing is kept of it. */
  resume(): boolean {
    const answer = resumeChat({ ...this.#options(), remember: this.id });
    if (answer === null) return false;
    // What came before the reload may be more than what was stored with the conversation.
    const { text, reasoning } = answer;
    this.#live = new LiveMessage({ ...this.#live.message, text: textBefore(this.#live.message) + text, reasoning });
    void this.#show(answer);
    return true;
  }

  /** Reads an answer along that was asked for elsewhere, from its beginning. */
  readAlong(reference: AnswerReference): void {
    void this.#show(resumeChat({ ...this.#options(), url: ENDPOINT, reference }));
  }

  /** Leaves the answer to others who read it. */
  leave(): void {
    this.#answer?.detach();
  }

  /** Ends the answer and its generation; what came stays. */
  stop(): void {
    this.#stop.abort();
  }

  /** The answer as the client library has it, once it has begun. */
  get answer(): Answer | null {
    return this.#answer;
  }

  #options(): AnswerOptions {
    const { delivery, pace } = settings.peek();
    return {
      remember: this.id,
      signal: this.#stop.signal,
      transport: delivery,
      pace,
      onState: (state) => this.#live.onState(state),
      onPause: (pause) => this.#live.onPause(pause),
      onTransport: (transport) => {
        this.#live.onTransport(transport);
        this.listener.onTransport(transport);
      },
    };
  }

  async #show(answer: Answer): Promise<void> {
    this.#answer = answer;
    const watch = setInterval(() => this.#watch(), WATCH_MS);
    let failure: unknown = null;
    try {
      for await (const delta of atReadingPace(answer, () => isDemonstration() && settings.peek().readingPace)) {
        this.#heardAt = Date.now();
        this.#live.handleDelta(delta);
        this.listener.onProgress(this);
      }
    } catch (error) {
      failure = this.#givenUp ?? explained(error);
    }
    clearInterval(watch);
    this.#live.handleEnd(failure);
    this.listener.onEnd(this, failure);
  }

  /** Gives up an answer that has brought nothing for too long. */
  #watch(): void {
    const { patience_s } = settings.peek();
    // A page that was asleep, or offline, has waited for itself.
    if (document.visibilityState === "hidden" || !navigator.onLine) this.#heardAt = Date.now();
    if (patience_s === 0 || Date.now() < this.#heardAt + patience_s * 1000) return;
    this.#givenUp = givenUp(patience_s);
    this.#stop.abort();
  }
}

/** What `message` had before it was continued: the answer on its way does not bring it again. */
export function textBefore({ text, continuedAt }: Message): string {
  return text.slice(0, continuedAt ?? 0);
}

function requestBody(messages: readonly RequestMessage[], instructions: Instructions): ChatRequest {
  const model = chosenModel();
  return {
    messages,
    stream_options: { include_usage: true },
    return_progress: true,
    ...(model !== null && { model: model.id }),
    ...(messages.at(-1)?.role === "assistant" && { continue_final_message: true, add_generation_prompt: false }),
    ...requestParameters(instructions),
  };
}
