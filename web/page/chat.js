// The chat page: sends the conversation, shows the answer as it streams, and measures it.

const STARTERS = [
  "What is token streaming?",
  "How does Loquent batch requests?",
  "Why do tokens stall on a bad network?",
  "Tell me a long story.",
];

const element = (id) => document.getElementById(id);
const conversation = [];
let running = null;

/** Headers of every API call; the key stays in this tab. */
function headers() {
  const key = element("api-key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

/** The request body for the conversation so far. */
function requestBody() {
  const system = element("system").value.trim();
  const temperature = element("temperature").valueAsNumber;
  const maxTokens = element("max-tokens").valueAsNumber;
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    stream: true,
    stream_options: { include_usage: true },
    ...(Number.isFinite(temperature) && { temperature }),
    ...(Number.isFinite(maxTokens) && { max_tokens: maxTokens }),
  };
}

/** Yields the data of each server-sent event of a response. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

/** Streams one answer; calls `onText` with each piece; resolves to its measures. */
async function streamAnswer(signal, onText) {
  const sent = performance.now();
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(requestBody()),
    signal,
  });
  if (!response.ok) throw new Error(await errorText(response));
  const measures = { finish: null, tokens: null, first: null, last: null, sent };
  for await (const data of events(response)) {
    if (data === "[DONE]") return measures;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices[0];
    if (choice?.delta?.content) {
      measures.last = performance.now();
      measures.first ??= measures.last;
      onText(choice.delta.content);
    }
    measures.finish = choice?.finish_reason ?? measures.finish;
    measures.tokens = chunk.usage?.completion_tokens ?? measures.tokens;
  }
  throw new Error("The connection broke; the answer is incomplete.");
}

async function errorText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** Adds an empty message to the page. */
function addMessage(role) {
  element("welcome").hidden = true;
  const article = element("message-template").content.cloneNode(true).firstElementChild;
  article.className = role;
  element("log").append(article);
  return { article, text: article.querySelector(".text"), footer: article.querySelector("footer") };
}

/** Keeps the newest text in view unless the reader has scrolled up. */
function follow(change) {
  const page = document.scrollingElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

function describe({ tokens, first, last, sent, finish }, stopped) {
  const parts = [];
  if (first !== null) parts.push(`first token ${Math.round(first - sent)} ms`);
  if (tokens > 1 && last > first) {
    parts.push(`${(((tokens - 1) / (last - first)) * 1000).toFixed(0)} tokens/s`);
  }
  if (tokens !== null) parts.push(`${tokens} tokens`);
  if (stopped) parts.push("stopped");
  if (finish === "length") parts.push("cut at the token limit");
  return parts.join(" · ");
}

async function ask(text) {
  conversation.push({ role: "user", content: text });
  follow(() => (addMessage("user").text.textContent = text));
  const answer = addMessage("assistant");
  answer.article.classList.add("streaming");
  running = new AbortController();
  showRunning(true);
  let received = "";
  let count = 0;
  let begun = null;
  try {
    const measures = await streamAnswer(running.signal, (piece) => {
      received += piece;
      count += 1;
      begun ??= performance.now();
      follow(() => answer.text.append(piece));
      const seconds = (performance.now() - begun) / 1000;
      if (seconds > 0.2) answer.footer.textContent = `${(count / seconds).toFixed(0)} chunks/s`;
    });
    answer.footer.textContent = describe(measures, false);
  } catch (error) {
    const stopped = error.name === "AbortError";
    answer.footer.textContent = stopped ? "stopped" : error.message;
    answer.article.classList.toggle("failed", !stopped);
  } finally {
    conversation.push({ role: "assistant", content: received });
    answer.article.classList.remove("streaming");
    running = null;
    showRunning(false);
  }
}

function showRunning(isRunning) {
  element("send").hidden = isRunning;
  element("stop").hidden = !isRunning;
  if (!isRunning) element("prompt").focus();
}

function submit() {
  const text = element("prompt").value.trim();
  if (!text || running) return;
  element("prompt").value = "";
  resize();
  void ask(text);
}

function resize() {
  const prompt = element("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, 200)}px`;
}

/** Names the model once the server is ready. */
async function showModel() {
  for (;;) {
    try {
      const ready = await fetch("ready");
      const body = await ready.json();
      element("model").textContent = ready.ok ? body.model : body.error.message;
      if (ready.ok) return;
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
element("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
element("stop").addEventListener("click", () => running?.abort());
element("new").addEventListener("click", () => {
  running?.abort();
  conversation.length = 0;
  for (const article of document.querySelectorAll("article")) article.remove();
  element("welcome").hidden = false;
});
for (const starter of STARTERS) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = starter;
  button.addEventListener("click", () => running || ask(starter));
  element("starters").append(button);
}
void showModel();
