// The page's conversations without a page: what becomes of an answer that cannot be read to its end, and what other tabs do.
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { loadTogether } from "./module.mjs";

const nothing = () => {};
globalThis.document = { baseURI: "http://page.test/", visibilityState: "hidden", addEventListener: nothing, removeEventListener: nothing };

const [chats, tree, { ToastView }, { emptyMessage }] = await loadTogether("chat/chats.ts", "chat/conversation.ts", "chat/toast.tsx", "message/model.ts");

const reference = { id: "a".repeat(32), token: "b".repeat(32) };
const open = (text) => ({ ...emptyMessage("answer", "assistant"), text, state: { is: "streaming" } });
const finished = (text, reason = "stop") => ({ ...open(text), state: { is: "finished", reason } });

/** From now on the server has `text` of the answer for the next one who reads it, and then nothing more. */
function serve(text) {
  const event = (content, at) => `id: ${at + 1}\ndata: ${JSON.stringify({ object: "chat.completion.chunk", choices: [{ index: 0, delta: { content }, finish_reason: null }] })}\n\n`;
  let rest = text;
  globalThis.fetch = async (url) => {
    const isGone = rest === null || !`${url}`.includes(reference.id);
    if (isGone) return Response.json({ error: { message: "no such answer" } }, { status: 404 });
    const body = [...rest].map(event).join("");
    rest = null;
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  };
}

/** From now on the server answers nothing. */
function neverAnswer() {
  globalThis.fetch = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

/** A conversation whose last answer is `message`. */
function conversation(message, own = null) {
  const asked = tree.addQuestion(tree.newConversation(1), null, "one", [], 2);
  return tree.withMessage(tree.addAnswer(asked, asked.leaf, message, 3), message, own, 4);
}

/** What is kept, and what the page hears of other tabs. */
const kept = new Map();
const tab = { hear: nothing, isReceived: async () => false };

const library = {
  isLasting: true,
  heads: async () => [...kept.values()],
  load: async (id) => kept.get(id) ?? null,
  save: async (one) => (kept.set(one.id, one), one),
  remove: async (id) => void kept.delete(id),
  listen: (hear) => (tab.hear = hear),
  isReceived: (turn) => tab.isReceived(turn),
};
await chats.startChats(library);

afterEach(() => {
  chats.stop();
  chats.startNew();
});

const answerOf = (one) => one.turns.at(-1);
const until = async (is) => {
  while (!is()) await new Promise((resolve) => setTimeout(resolve, 5));
};

/** Opens `made` as it is kept; returns its last turn once no more comes. */
async function opened(made) {
  kept.set(made.id, made);
  await chats.openConversation(made.id);
  await until(() => answerOf(chats.current.peek()).message.state.is !== "streaming");
  await until(() => kept.get(made.id) === chats.current.peek());
  return answerOf(kept.get(made.id));
}

test("what was kept of an answer stays where the server has no more of it", async () => {
  serve(null);
  const { message, reference: left } = await opened(conversation(open("sixty per cent"), reference));
  assert.deepEqual([message.text, message.state.is, left], ["sixty per cent", "failed", null]);
  assert.equal(chats.liveOf(answerOf(chats.current.peek())).message.text, "sixty per cent", "it is shown");
});

test("what was kept of an answer stays where the server has less of it, and no more comes", async () => {
  serve("sixty");
  const { message } = await opened(conversation(open("sixty per cent"), reference));
  assert.deepEqual([message.text, message.state.is], ["sixty per cent", "failed"]);
});

test("an answer of which the server has more goes on", async () => {
  serve("sixty per cent and");
  const { message } = await opened(conversation(open("sixty per cent"), reference));
  assert.deepEqual([message.text, message.state.is], ["sixty per cent and", "failed"]);
});

test("a conversation that was deleted while its answer came is restored with what had come", async () => {
  neverAnswer();
  const made = conversation(open("sixty per cent"), reference);
  kept.set(made.id, made);
  await chats.openConversation(made.id);
  assert.ok(chats.isRunning());
  await chats.remove(made.id);
  assert.ok(!kept.has(made.id));
  const [, undo] = ToastView().props.children;
  undo.props.onClick();
  await until(() => chats.current.peek().id === made.id);
  const { message } = answerOf(chats.current.peek());
  assert.deepEqual([message.text, message.state], ["sixty per cent", { is: "finished", reason: "stopped" }]);
});

test("an answer to which nothing leads is lost, unless another tab receives it", async () => {
  const made = conversation(open(""));
  const { message } = await opened(made);
  assert.equal(message.state.error, "The page was closed before the answer was complete.");
  const asked = [];
  tab.isReceived = async (turn) => asked.push(turn) > 0;
  kept.set(made.id, made);
  chats.startNew();
  await chats.openConversation(made.id);
  await until(() => asked.length > 0);
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.deepEqual(asked, ["answer"]);
  assert.equal(answerOf(chats.current.peek()).message.state.is, "streaming");
});

test("what another tab does is taken in, also while an answer comes here", async () => {
  neverAnswer();
  const made = conversation(finished("fir", "stopped"));
  await opened(made);
  chats.ask("two");
  const [, , asked, coming] = chats.current.peek().turns;
  kept.set(made.id, { ...tree.withMessage(made, finished("first, whole"), null, Date.now() + 1_000), title: "New" });
  tab.hear(made.id);
  await until(() => chats.current.peek().title === "New");
  const { turns, leaf } = chats.current.peek();
  assert.deepEqual(turns.map(({ message }) => message.text), ["one", "first, whole", "two", ""]);
  assert.deepEqual([turns[2], leaf], [asked, coming.id]);
  assert.equal(chats.liveOf(turns[1]).message.text, "first, whole", "it is shown");
});

test("the list has the title under which a conversation is kept", async () => {
  const made = conversation(finished("first"));
  const { save } = library;
  library.save = async (one) => tree.merged(one, tree.withTitle(made, "New", 5));
  await chats.save({ ...made, updatedAt: 6 });
  library.save = save;
  assert.equal(chats.heads.peek().find(({ id }) => id === made.id).title, "New");
});

test("a failure of the storage is told as what it is", async () => {
  const made = conversation(finished("first"));
  const { save } = library;
  for (const [name, says] of [["QuotaExceededError", /no room/], ["UnknownError", /storage of conversations fails: told/]]) {
    library.save = () => Promise.reject(new DOMException("told", name));
    await chats.save(made);
    const [text] = ToastView().props.children;
    assert.match(text.props.children, says);
  }
  library.save = save;
});
