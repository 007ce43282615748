// The chat page: sends the conversation, shows the answer as it streams, measures it, and
// goes on with it after a reload. How tokens get here is loquent-client.js's business.

import { LoquentError, forgetChat, prepare, resumeChat, streamChat } from "./loquent-client.js";
import { Strip } from "./strip.js";

const STARTERS = [
  "What is token streaming?",
  "How does Loquent batch requests?",
  "What is head-of-line blocking?",
  "Tell me a long story.",
];
const ENDPOINT = "v1/chat/completions";
const KEPT_ANSWER = "chat";
const KEPT_CONVERSATION = "loquent:conversation";

/** A silence this long is worth a word, ms: readers take it for a stall. */
const STALL_MS = 700;

/** Text goes onto the page at most this often, ms: fast answers cost a layout per frame, not per token. */
const FRAME_MS = 16;

/** Tokens of the last so many ms are the speed that is shown while an answer streams. */
const RATE_WINDOW_MS = 3_000;

const TRANSPORTS = {
  webtransport: { name: "WebTransport", about: "Tokens come as datagrams: loss does not hold back what follows" },
  sse: { name: "SSE", about: "Tokens come as server-sent events over TCP, the way that works everywhere" },
};

const element = (id) => document.getElementById(id);
let conversation = [];
let running = null;
/** Name of the model to ask, once the server has told. */
let model = null;

/** The request body for the conversation so far. */
function requestBody() {
  const system = element("system").value.trim();
  const temperature = element("temperature").valueAsNumber;
  const maxTokens = element("max-tokens").valueAsNumber;
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    stream_options: { include_usage: true },
    return_progress: true,
    ...(model !== null && { model }),
    ...(Number.isFinite(temperature) && { temperature }),
    ...(Number.isFinite(maxTokens) && { max_tokens: maxTokens }),
  };
}

/** Adds an empty message to the page. */
function addMessage(role) {
  element("welcome").hidden = true;
  const article = element("message-template").content.cloneNode(true).firstElementChild;
  article.className = role;
  article.setAttribute("aria-label", role === "user" ? "You" : "Answer");
  element("log").append(article);
  const text = article.querySelector(".text").appendChild(document.createTextNode(""));
  return { article, text, facts: article.querySelector(".facts"), strip: article.querySelector(".strip") };
}

/** Keeps the newest text in view unless the reader has scrolled up. */
function follow(change) {
  const page = document.scrollingElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

/** An answer on its way: what is shown of it, and how fast. */
class Showing {
  #begun = performance.now();
  #first = null;
  #last = null;
  #recent = [];
  #pending = "";
  #flushedAt = 0;
  #flushing = null;
  #state = "connecting";
  #resumes = 0;
  #message = addMessage("assistant");
  #strip = new Strip(this.#message.strip);
  #watch = setInterval(() => this.#tick(), 100);

  #asked;

  /** `asked`: the question was asked here, not before a reload. */
  constructor(asked) {
    this.#asked = asked;
    this.#message.article.classList.add("streaming");
    this.#message.article.setAttribute("aria-busy", "true");
  }

  /** What the library reports while the answer streams. */
  get listeners() {
    return { onTransport: showTransport, onState: (state) => this.#handleState(state) };
  }

  /** Shows all of `answer`; throws what it throws. */
  async show(answer) {
    this.answer = answer;
    follow(() => (this.#message.text.data = answer.text));
    for await (const delta of answer) {
      if (delta.tokens) this.#count(delta.tokens);
      if (delta.kind === "text" && delta.choice === 0) this.#append(delta.text);
    }
  }

  #append(piece) {
    this.#pending += piece;
    const wait = this.#flushedAt + FRAME_MS - performance.now();
    if (wait <= 0) this.#flush();
    else this.#flushing ??= setTimeout(() => this.#flush(), wait);
  }

  #flush() {
    clearTimeout(this.#flushing);
    this.#flushing = null;
    this.#flushedAt = performance.now();
    if (this.#pending) follow(() => this.#message.text.appendData(this.#pending));
    this.#pending = "";
  }

  /** The answer is over, well or not. */
  end(error) {
    clearInterval(this.#watch);
    this.#flush();
    this.#strip.stop();
    const { article, facts } = this.#message;
    article.classList.remove("streaming");
    article.removeAttribute("aria-busy");
    const stopped = error?.name === "AbortError";
    const failed = error !== null && !stopped;
    article.classList.toggle("failed", failed);
    follow(() => (facts.textContent = failed ? explain(error) : this.#summary(stopped)));
    if (failed) offerRetry(article);
    element("status").textContent = failed ? explain(error) : stopped ? "Stopped." : "The answer is complete.";
  }

  #handleState(state) {
    this.#state = state;
    if (state === "resuming") this.#resumes += 1;
    this.#message.article.classList.toggle("resuming", state === "resuming");
    this.#tick();
  }

  #count(tokens) {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#recent.push({ at: this.#last, tokens });
    this.#strip.add(this.#last);
  }

  #tick() {
    const silence = performance.now() - (this.#last ?? this.#begun);
    this.#message.article.classList.toggle("stalled", this.#last !== null && silence > STALL_MS);
    this.#message.facts.textContent = this.#progress(silence);
  }

  #progress(silence) {
    const seconds = `${(silence / 1000).toFixed(1)} s`;
    if (this.#state === "resuming") return `connection lost, resuming… ${seconds}`;
    if (this.#last === null) return silence > STALL_MS ? this.#waiting(seconds) : "";
    const stall = silence > STALL_MS && `stalled for ${seconds}`;
    return [this.#transport(), this.#rate(), stall].filter(Boolean).join(" · ");
  }

  /** What the server says of the wait for the first token. */
  #waiting(seconds) {
    const news = this.answer?.progress;
    if (!news) return `waiting for the first token… ${seconds}`;
    const about = news.eta_ms === null ? "" : `, about ${(news.eta_ms / 1000).toFixed(1)} s to go`;
    if (news.queued > 0) return `number ${news.queued} in the queue${about}… ${seconds}`;
    return `reading the prompt, ${news.processed} of ${news.total} tokens${about}… ${seconds}`;
  }

  #transport() {
    return TRANSPORTS[this.answer?.transport]?.name;
  }

  #rate() {
    const now = performance.now();
    this.#recent = this.#recent.filter(({ at }) => at > now - RATE_WINDOW_MS);
    const elapsed = Math.min(RATE_WINDOW_MS, now - this.#first);
    const tokens = this.#recent.reduce((sum, one) => sum + one.tokens, 0);
    return elapsed > 300 && `${((tokens / elapsed) * 1000).toFixed(0)} tokens/s`;
  }

  #summary(stopped) {
    const tokens = this.answer.usage?.completion ?? null;
    const elapsed = this.#last - this.#first;
    // What came before a reload was neither timed nor counted here.
    const timed = this.#asked && this.#first !== null;
    return [
      this.#transport(),
      timed && `first token ${Math.round(this.#first - this.#begun)} ms`,
      timed && tokens > 1 && elapsed > 0 && `${(((tokens - 1) / elapsed) * 1000).toFixed(0)} tokens/s`,
      tokens !== null && `${tokens} tokens`,
      this.#resumes > 0 && (this.#resumes === 1 ? "resumed" : `resumed ${this.#resumes} times`),
      stopped && "stopped",
      this.answer.finish === "length" && "cut at the token limit",
    ]
      .filter(Boolean)
      .join(" · ");
  }
}

/** What went wrong, and what to do about it. */
function explain(error) {
  if (!(error instanceof LoquentError)) return `${error.message}`;
  if (error.status === 401) return `${error.message} Enter the API key in Settings.`;
  if (error.retryAfter_s !== undefined) return `${error.message} Try again in ${error.retryAfter_s} s.`;
  if (error.kind === "broken") return `${error.message} Check that the server runs and that you are online.`;
  return error.message;
}

function offerRetry(article) {
  const retry = article.querySelector(".retry");
  retry.hidden = false;
  retry.addEventListener("click", () => {
    if (running) return;
    article.remove();
    if (conversation.at(-1)?.role === "assistant") conversation.pop();
    void answerConversation();
  });
}

/** Streams one answer to the conversation, or goes on with the one that a reload cut. */
async function answerConversation({ resumed = false } = {}) {
  const showing = new Showing(!resumed);
  const stop = new AbortController();
  running = stop;
  showRunning(true);
  const options = {
    remember: KEPT_ANSWER,
    signal: stop.signal,
    transport: element("delivery").value,
    pace: element("pace").value,
    ...showing.listeners,
  };
  const apiKey = element("api-key").value.trim() || undefined;
  const answer = resumed ? resumeChat(options) : streamChat({ ...options, url: ENDPOINT, body: requestBody(), apiKey });
  let failure = null;
  try {
    await showing.show(answer);
  } catch (error) {
    failure = error;
  }
  // A new chat may have begun meanwhile: this answer is no part of it.
  if (running === stop) finish(answer, failure);
  showing.end(failure);
}

function finish(answer, failure) {
  const kept = answer.text !== "" || failure === null;
  if (kept) conversation.push({ role: "assistant", content: answer.text });
  keepConversation();
  running = null;
  showRunning(false);
}

function ask(text) {
  if (running) return;
  conversation.push({ role: "user", content: text });
  keepConversation();
  follow(() => (addMessage("user").text.data = text));
  void answerConversation();
}

function showRunning(isRunning) {
  element("send").hidden = isRunning;
  element("stop").hidden = !isRunning;
  if (isRunning) element("status").textContent = "";
  else element("prompt").focus();
}

function showTransport(transport) {
  const { name, about } = TRANSPORTS[transport];
  const badge = element("transport");
  badge.hidden = false;
  badge.className = transport;
  badge.textContent = name;
  badge.title = about;
  badge.setAttribute("aria-label", `Delivered by ${name}`);
}

function keepConversation() {
  try {
    sessionStorage.setItem(KEPT_CONVERSATION, JSON.stringify(conversation));
  } catch {
    // No storage here: a reload starts over.
  }
}

/** Shows the conversation that a reload cut, and goes on with its answer. */
function restoreConversation() {
  try {
    conversation = JSON.parse(sessionStorage.getItem(KEPT_CONVERSATION)) ?? [];
  } catch {
    conversation = [];
  }
  for (const { role, content } of conversation) addMessage(role).text.data = content;
  if (conversation.at(-1)?.role !== "user") return forgetChat(KEPT_ANSWER);
  if (resumeChat({ remember: KEPT_ANSWER })) return void answerConversation({ resumed: true });
  const { article, facts } = addMessage("assistant");
  article.classList.add("failed");
  facts.textContent = "The page was reloaded before the answer began.";
  offerRetry(article);
}

function startNewChat() {
  running?.abort();
  running = null;
  showRunning(false);
  conversation = [];
  keepConversation();
  for (const article of document.querySelectorAll("article")) article.remove();
  element("welcome").hidden = false;
}

function submit() {
  const text = element("prompt").value.trim();
  if (!text || running) return;
  element("prompt").value = "";
  resize();
  ask(text);
}

function resize() {
  const prompt = element("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, 200)}px`;
}

/** Names the model once the server is ready, and opens the way to it. */
async function showModel() {
  for (;;) {
    try {
      const ready = await fetch("ready");
      const body = await ready.json();
      element("model").textContent = ready.ok ? body.model : body.error.message;
      if (ready.ok) {
        model = body.model_id ?? null;
        return showTransport(await prepare(ENDPOINT));
      }
    } catch {
      element("model").textContent = "the server does not answer";
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
element("prompt").addEventListener("input", resize);
// An idle connection may have ended: a new one opens while the question is being typed.
element("prompt").addEventListener("focus", () => void prepare(ENDPOINT));
element("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
element("stop").addEventListener("click", () => running?.abort());
element("new").addEventListener("click", startNewChat);
for (const starter of STARTERS) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = starter;
  button.addEventListener("click", () => ask(starter));
  element("starters").append(button);
}
restoreConversation();
void showModel();
