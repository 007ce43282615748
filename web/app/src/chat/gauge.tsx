// How much of what the model can read at once is used by the conversation and the draft.

import { signal, useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { current, liveOf } from "./chats.js";
import { type Attachment, isImage, shownPath } from "./conversation.js";
import { draft, files } from "./draft.js";
import { isOpen } from "../message/model.js";
import { authorization, chosenModel, requestJson } from "./server.js";
import { instructionsOf } from "./settings.js";

/** Characters of a token, about, where nobody counts. */
const CHARACTERS_PER_TOKEN = 4;

/** The draft is counted after a pause in typing of this length, ms. */
const COUNT_AFTER_MS = 400;

/** From this share on the gauge warns. */
const NEARLY_FULL = 0.85;

/** Longest text that the server is asked to count, characters. */
const MAX_COUNTED = 500_000;

/** How often the gauge moves while an answer streams, ms. */
const MOVE_EVERY_MS = 500;

/** Whether this server counts tokens. */
const counts = signal(true);

export function ContextGauge(): VNode | null {
  const limit = chosenModel()?.contextTokens ?? null;
  const { tokens, uncounted } = useConversation();
  const drafted = [draft.value, ...files.value.map(textOf)].filter((text) => text !== "");
  const text = [...uncounted.filter((text) => text !== ""), ...drafted].join("\n");
  const used = tokens + useTokensOf(text, drafted.length > 0);
  if (limit === null || used === 0) return null;
  const share = used / limit;
  const level = share > 1 ? "over" : share > NEARLY_FULL ? "nearly" : "fine";
  const words = `${used.toLocaleString("en")} of ${limit.toLocaleString("en")} tokens`;
  const title = share > 1 ? "Longer than the model can read at once" : "What the model reads at once: the conversation and its answer";
  return (
    <span class={`gauge ${level}`} title={title}>
      <meter class="unseen" min={0} max={limit} value={used} aria-label="Context used" />
      <svg viewBox="0 0 20 20" aria-hidden="true">
        <circle class="track" cx="10" cy="10" r="7" pathLength="100" />
        <circle class="fill" cx="10" cy="10" r="7" pathLength="100" stroke-dasharray={`${Math.min(share, 1) * 100} 100`} />
      </svg>
      <span id="context">{words}</span>
    </span>
  );
}

/** Nobody tells how many tokens a picture takes. */
function textOf(file: Attachment): string {
  return isImage(file) ? "" : file.text;
}

/** What the model is sent: tokens that it has counted itself, and texts that nobody has counted. */
interface Counted {
  readonly tokens: number;
  readonly uncounted: readonly string[];
}

/** The conversation, up to what its latest whole answer tells; an answer that was stopped tells nothing of the prompt. */
function useConversation(): Counted {
  const path = shownPath(current.value);
  const seen = path.slice(Math.max(0, path.findIndex(({ id }) => id === current.value.seenFrom)));
  const last = seen.at(-1);
  const live = last?.message.role === "assistant" ? liveOf(last) : null;
  const moved = useSignal(0);
  useEffect(() => {
    if (live === null) return;
    const timer = setInterval(() => {
      const { tokens, promptTokens } = live.message.facts;
      moved.value = tokens + (promptTokens ?? 0);
    }, MOVE_EVERY_MS);
    return () => clearInterval(timer);
  }, [live]);
  void moved.value;
  const facts = seen.map((turn) => (turn === last && live ? live.message.facts : turn.message.facts));
  const told = facts.findLastIndex(({ promptTokens }) => promptTokens !== null);
  const atTold = facts[told];
  const before = atTold ? (atTold.promptTokens ?? 0) + atTold.tokens : 0;
  const isComing = live !== null && isOpen(live.message.state) && told < seen.length - 1;
  const rest = seen.slice(told + 1, isComing ? -1 : undefined);
  const system = atTold || seen.length === 0 ? "" : instructionsOf(current.value).system;
  const texts = rest.flatMap(({ message, files }) => [message.text, ...files.map(textOf)]);
  return { tokens: before + (isComing ? (facts.at(-1)?.tokens ?? 0) : 0), uncounted: [system, ...texts] };
}

/** Tokens of `text`: as the server counts while somebody types, or about. */
function useTokensOf(text: string, isTyping: boolean): number {
  const counted = useSignal<{ text: string; tokens: number } | null>(null);
  useEffect(() => {
    if (!isTyping || !counts.peek() || text.trim() === "" || text.length > MAX_COUNTED) return;
    const timer = setTimeout(() => {
      void countTokens(text).then((tokens) => tokens !== null && (counted.value = { text, tokens }));
    }, COUNT_AFTER_MS);
    return () => clearTimeout(timer);
  }, [text, isTyping]);
  if (text.trim() === "") return 0;
  return counted.value?.text === text ? counted.value.tokens : Math.ceil(text.length / CHARACTERS_PER_TOKEN);
}

async function countTokens(text: string): Promise<number | null> {
  try {
    const headers = { "content-type": "application/json", ...authorization() };
    const { ok, status, body } = await requestJson("tokenize", { method: "POST", headers, body: JSON.stringify({ prompt: text }) });
    // Other servers behind this one may not count: they are not asked again.
    if (status === 404 || status === 405) counts.value = false;
    const { count } = (body ?? {}) as { count?: unknown };
    return ok && typeof count === "number" ? count : null;
  } catch {
    return null;
  }
}
