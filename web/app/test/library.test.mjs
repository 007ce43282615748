// Where conversations are kept, over a database in memory: what becomes of two tabs' changes, and of a lost connection.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

/** One that does not keep Node from ending. */
globalThis.BroadcastChannel = class extends BroadcastChannel {
  constructor(name) {
    super(name);
    this.unref();
  }
};

const { idsWith, openLibrary } = await load("chat/library.ts");
const tree = await load("chat/conversation.ts");
const { emptyMessage } = await load("message/model.ts");

/** The stores that several connections share. `fails` has the errors that the next transactions throw. */
function disk() {
  const stores = { heads: new Map(), bodies: new Map() };
  const fails = [];
  let connections = 0;
  let last = Promise.resolve();
  /** Each waits for the one before, and ends with its second write. */
  const transaction = () => {
    if (fails.length > 0) throw fails.shift();
    const before = last;
    let [end, writes] = [null, 0];
    last = new Promise((resolve) => (end = resolve));
    const written = (what) => async (value) => {
      await before;
      what(value);
      if ((writes += 1) === 2) end();
    };
    const objectStore = (name) => ({
      get: async (id) => (await before, structuredClone(stores[name].get(id))),
      put: written((value) => stores[name].set(value.id, structuredClone(value))),
      delete: written((id) => stores[name].delete(id)),
    });
    return { objectStore, done: last };
  };
  const read = (what) => async (...args) => {
    if (fails.length > 0) throw fails.shift();
    await last;
    return structuredClone(what(...args));
  };
  const get = read((name, id) => stores[name].get(id));
  const database = { transaction, get, getAllKeys: read((name) => [...stores[name].keys()]), close: () => {} };
  const open = async () => ((connections += 1), database);
  return { stores, fails, open, connections: () => connections };
}

const failure = (name) => new DOMException("told by the browser", name);
const answered = (id, text, reason = "stop") => ({ ...emptyMessage(id, "assistant"), text, state: { is: "finished", reason } });

function sample(text = "first") {
  const asked = tree.addQuestion(tree.newConversation(1), null, "one", [], 2);
  return tree.addAnswer(asked, asked.leaf, answered("a", text, "stopped"), 3);
}

test("a connection that the browser has closed is opened again, and nothing is lost", async () => {
  for (const name of ["InvalidStateError", "UnknownError", "AbortError"]) {
    const { fails, open, connections } = disk();
    const library = await openLibrary(open);
    const made = sample();
    fails.push(failure(name));
    await library.save(made);
    fails.push(failure(name));
    assert.deepEqual(await library.load(made.id), made, name);
    fails.push(failure(name));
    await library.remove(made.id);
    assert.equal(await library.load(made.id), null);
    assert.equal(connections(), 4);
  }
});

test("other errors are told, as is a connection that is lost again", async () => {
  const { fails, open, connections } = disk();
  const library = await openLibrary(open);
  fails.push(failure("QuotaExceededError"));
  await assert.rejects(library.save(sample()), { name: "QuotaExceededError" });
  assert.equal(connections(), 1);
  fails.push(failure("InvalidStateError"), failure("InvalidStateError"));
  await assert.rejects(library.save(sample()), { name: "InvalidStateError" });
});

test("two tabs that change a conversation in turn keep what both have done", async () => {
  const { open } = disk();
  const [one, other] = [await openLibrary(open), await openLibrary(open)];
  const base = sample("fir");
  await one.save(base);
  const theirs = await other.load(base.id);
  await one.save(tree.withMessage(base, answered("a", "first, whole"), null, 4));
  const whole = await other.save(tree.addQuestion(theirs, "a", "two", [], 5));
  assert.deepEqual(tree.shownPath(whole).map(({ message }) => message.text), ["one", "first, whole", "two"]);
  assert.deepEqual(await one.load(base.id), whole);
});

test("what a tab takes out stays out, also when it saves twice at once", async () => {
  const { open } = disk();
  const library = await openLibrary(open);
  const base = sample();
  const asked = tree.addQuestion(base, "a", "two", [], 5);
  await Promise.all([library.save(base), library.save(asked), library.save({ ...tree.withoutTurn(asked, asked.leaf), updatedAt: 6 })]);
  assert.equal((await library.load(base.id)).turns.length, 2);
});

/** Two tabs that both have the same conversation: `one` can rename it, `other` has gone on with it. */
async function twoTabs(renamedAt, askedAt) {
  const { open } = disk();
  const [one, other] = [await openLibrary(open), await openLibrary(open)];
  const base = sample();
  await one.save(base);
  const asked = tree.addQuestion(await other.load(base.id), "a", "two", [], askedAt);
  return { other, asked, rename: () => one.save(tree.withTitle(base, "New", renamedAt)) };
}

const withSecond = (asked, now) => tree.addAnswer(asked, asked.turns[2].id, answered("b", "second"), now);

test("a title that is chosen while another tab saves twice at once stays, whichever comes first", async () => {
  for (const comesAt of [0, 1, 2]) {
    const { other, asked, rename } = await twoTabs(4, 5);
    const saves = [() => other.save(asked), () => other.save(withSecond(asked, 6))];
    saves.splice(comesAt, 0, rename);
    await Promise.all(saves.map((save) => save()));
    const { title, turns } = await other.load(asked.id);
    assert.deepEqual([title, turns.length], ["New", 4], `${comesAt}`);
  }
});

test("a title that is chosen in the millisecond in which another tab saves stays, whichever comes first", async () => {
  for (const isFirst of [true, false]) {
    const { other, asked, rename } = await twoTabs(5, 5);
    if (isFirst) await rename();
    const whole = await other.save(asked);
    if (!isFirst) await rename();
    await other.save(withSecond(whole, 5));
    const { title, turns } = await other.load(asked.id);
    assert.deepEqual([title, turns.length], ["New", 4], isFirst ? "first" : "last");
  }
});

test("of a conversation that is not shown a tab keeps its new title and the end of its answer, whichever comes first", async () => {
  for (const isTitleFirst of [true, false]) {
    const library = await openLibrary(disk().open);
    const base = sample("fir");
    await library.save(base);
    const [one, other] = [await library.load(base.id), await library.load(base.id)];
    const changed = [tree.withTitle(one, "New", 4), tree.withMessage(other, answered("a", "first, whole"), null, 5)];
    for (const each of isTitleFirst ? changed : changed.reverse()) await library.save(each, false);
    const { title, turns } = await library.load(base.id);
    assert.deepEqual([title, turns[1].message.text], ["New", "first, whole"], isTitleFirst ? "first" : "last");
  }
});

test("what was kept before there were versions is read, and what is taken out of it stays out", async () => {
  const { stores, open } = disk();
  const made = tree.addQuestion(sample(), "a", "two", [], 5);
  stores.bodies.set(made.id, made);
  const library = await openLibrary(open);
  assert.deepEqual(await library.load(made.id), made);
  await library.save(tree.withoutTurn(made, made.leaf));
  assert.equal((await library.load(made.id)).turns.length, 2);
  stores.bodies.set(made.id, { ...made, version: 7 });
  assert.deepEqual(await library.load(made.id), made, "a version of another kind is none");
});

test("a tab asks the others whether one of them receives an answer", async () => {
  const [one, other] = [await openLibrary(disk().open), await openLibrary(disk().open)];
  const heard = [];
  other.listen((id) => heard.push(id), (turn) => turn === "on its way");
  one.listen(() => {}, () => true);
  assert.deepEqual(await Promise.all([one.isReceived("on its way"), one.isReceived("lost")]), [true, false]);
  const made = sample();
  await one.save(made);
  while (heard.length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(heard, [made.id], "a question is no news");
});

test("all conversations are read, and those that mention some words are found", async () => {
  const library = await openLibrary(disk().open);
  const made = Array.from({ length: 2_100 }, (_, at) => ({ ...sample(), id: `c${at}`, title: `Number ${at}` }));
  for (const one of made) await library.save(one);
  const all = [];
  for await (const one of library.all()) all.push(one.id);
  assert.deepEqual(all, made.map(({ id }) => id));
  assert.deepEqual([...(await idsWith(" 2099  FIRST ", library.all()))], ["c2099"]);
});

test("where there is no database, conversations last as long as the page", async () => {
  const library = await openLibrary(() => Promise.reject(failure("SecurityError")));
  const made = sample();
  await library.save(made);
  assert.deepEqual([library.isLasting, await library.load(made.id), await library.isReceived("a")], [false, made, false]);
});
