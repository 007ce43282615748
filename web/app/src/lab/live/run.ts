// One live run: the same question by event stream and by WebTransport, over the same bad link.

import { prepare, streamChat } from "@loquent/client";

import { Lane } from "../lane.js";
import type { Weather } from "../timeline.js";
import { LiveClock } from "./clock.js";
import { LANES, type LaneName, type LinkNews, laneEvents, watchLink } from "./link_events.js";
import { LIVE_PATH, type LiveOffer, type LiveWeather, isBetween, record } from "./offer.js";
import { StallWatch } from "./stall_watch.js";

/** How often it is checked whether text stands still, in ms. */
const CHECK_MS = 50;
/** How long the server may take for a word about a run, in ms. */
const REPLY_MS = 10_000;
/** Packets that are told after an answer's end still belong to it, in ms. */
const AFTERMATH_MS = 400;
/** A connection of an earlier run may have died of its weather: the question is asked again, and is the same one. */
const RETRIES = 3;
/** What a storm loses, as far as the picture is concerned. */
const STORM_LOSS = 0.9;
const MAX_STORMS = 10_000;

/** Names of the lanes. Their panes add that they are live, as the simulated ones have the same names. */
const LANE_NAMES: Readonly<Record<LaneName, string>> = { tcp: "TCP", loquent: "Loquent" };

/** The model's name matters to no server with one model. */
const MODEL = "loquent";

/** A run that begins at once and ends with its answers. */
export class LiveRun {
  readonly lanes: Readonly<Record<LaneName, Lane>> = {
    tcp: new Lane(`${LANE_NAMES.tcp}, live`),
    loquent: new Lane(`${LANE_NAMES.loquent}, live`),
  };
  readonly clock = new LiveClock();
  /** When packets were lost. It is known before it happens; panes show it up to the present. */
  readonly storms: Weather[] = [];
  readonly #offer: LiveOffer;
  readonly #weather: LiveWeather;
  readonly #stopped = new AbortController();
  readonly #packets: Record<LaneName, number> = { tcp: 0, loquent: 0 };
  #run: number | null = null;

  constructor(offer: LiveOffer, weather: LiveWeather) {
    this.#offer = offer;
    this.#weather = weather;
  }

  /** Ends the run: {@link run} rejects with an `AbortError`. */
  stop(): void {
    this.#stopped.abort();
  }

  /**
   * Connects, lets the weather begin, and reads both answers to their ends. `onBegun` is called when
   * there is something to see.
   */
  async run(onBegun: () => void): Promise<void> {
    const unwatch = watchLink((news) => this.#handleNews(news));
    try {
      await this.#prepare();
      await this.#connect();
      await this.#begin();
      onBegun();
      const outcomes = await Promise.allSettled(LANES.map((lane) => this.#read(lane)));
      const failed = outcomes.find((outcome) => outcome.status === "rejected");
      if (failed) throw failed.reason;
      await pause(AFTERMATH_MS);
    } finally {
      unwatch();
      this.clock.stop();
    }
  }

  /** The link takes the weather's delay; it loses nothing yet. */
  async #prepare(): Promise<void> {
    const { run, storms_ms: storms } = record(await this.#post("/runs", this.#weather));
    if (!isBetween(run, 0, Number.MAX_SAFE_INTEGER)) throw new Error("The server has prepared no run.");
    this.#run = run;
    const spans: readonly unknown[] = Array.isArray(storms) ? storms.slice(0, MAX_STORMS) : [];
    for (const span of spans) {
      const [from, to]: readonly unknown[] = Array.isArray(span) ? span : [];
      if (isBetween(from, 0, Infinity) && isBetween(to, from, Infinity)) this.storms.push({ from, to, loss: STORM_LOSS });
    }
  }

  /** Both sides connect in peace, and ask for one token, so that the browser has asked what it must. */
  async #connect(): Promise<void> {
    const transport = await prepare(this.#url("loquent"));
    if (transport !== "webtransport") throw new Error("WebTransport does not get through to the server.");
    await Promise.all(LANES.map((lane) => this.#ask(lane, 1).finalText()));
  }

  async #begin(): Promise<void> {
    const asked = performance.now();
    await this.#post(`/runs/${this.#run}/begin`, {});
    // The weather began somewhere between the two.
    this.clock.begin((asked + performance.now()) / 2);
  }

  async #post(path: string, body: object): Promise<unknown> {
    const signal = AbortSignal.any([this.#stopped.signal, AbortSignal.timeout(REPLY_MS)]);
    const headers = { "content-type": "application/json" };
    const response = await fetch(LIVE_PATH + path, { method: "POST", headers, body: JSON.stringify(body), signal });
    const reply: unknown = await response.json();
    if (response.ok) return reply;
    const { message } = record(record(reply)["error"]);
    throw new Error(typeof message === "string" ? message.slice(0, 300) : `The server answered ${response.status}.`);
  }

  #url(lane: LaneName): URL {
    return new URL("v1/chat/completions", lane === "tcp" ? this.#offer.tcpUrl : this.#offer.loquentUrl);
  }

  #ask(lane: LaneName, maxTokens: number) {
    const messages = [{ role: "user" as const, content: this.#offer.question }];
    const body = { model: MODEL, messages, max_tokens: maxTokens, temperature: 0, seed: 0 };
    const transport = lane === "tcp" ? "sse" : "webtransport";
    return streamChat({ url: this.#url(lane), body, transport, retries: RETRIES, signal: this.#stopped.signal });
  }

  /** Reads an answer into its lane. */
  async #read(lane: LaneName): Promise<void> {
    const watch = new StallWatch(this.#offer.tokensPerS);
    const add = (events: ReturnType<StallWatch["handleTime"]>): void => events.forEach((event) => this.lanes[lane].add(event));
    const timer = setInterval(() => add(watch.handleTime(this.clock.now)), CHECK_MS);
    let complete = false;
    try {
      for await (const delta of this.#ask(lane, this.#offer.maxTokens)) {
        if ((delta.kind !== "text" && delta.kind !== "reasoning") || delta.text === "") continue;
        const at = this.clock.now;
        add(watch.handleText(at));
        add([{ kind: "shown", at, text: delta.text, tokens: delta.tokens }]);
      }
      complete = true;
    } finally {
      clearInterval(timer);
      add(watch.handleEnd(this.clock.now, complete));
    }
  }

  #handleNews({ run, packets }: LinkNews): void {
    if (run !== this.#run) return;
    for (const packet of packets) {
      const number = this.#packets[packet.lane]++;
      for (const event of laneEvents(packet, number)) this.lanes[packet.lane].add(event);
    }
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
