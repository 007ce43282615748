// Where settings are kept, with several tabs: those of one that keeps nothing touch nothing on the device.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const KEY = "loquent:settings";

/** A browser's storage; `tell` hears of each change. */
function storage(tell = () => {}) {
  const kept = new Map();
  const write = (key, value) => {
    if ((kept.get(key) ?? null) === value) return;
    if (value === null) kept.delete(key);
    else kept.set(key, value);
    tell();
  };
  return { getItem: (key) => kept.get(key) ?? null, setItem: write, removeItem: (key) => write(key, null) };
}

/** A browser in which `openTab` opens the page's settings in a tab of their own. */
function browser() {
  const tabs = new Set();
  let acting = null;
  const tellOthers = () => {
    const by = acting;
    for (const tab of tabs) if (tab !== by) tab.act(() => tab.listener());
  };
  const localStorage = storage(tellOthers);
  const openTab = async (sessionStorage = storage()) => {
    const tab = { listener: () => {} };
    tab.act = (what) => {
      const before = acting;
      acting = tab;
      const addEventListener = (_, listener) => (tab.listener = listener);
      for (const [name, value] of Object.entries({ localStorage, sessionStorage, addEventListener })) {
        Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
      }
      const done = what();
      acting = before;
      if (before !== null) before.act(() => {});
      return done;
    };
    tab.close = () => tabs.delete(tab);
    tab.reload = () => (tab.close(), openTab(sessionStorage));
    // The module reads what is kept when it is loaded.
    tab.act(() => {});
    const { settings, changeSettings, keepSettings } = await load("chat/settings.ts");
    tab.act(keepSettings);
    tab.change = (change) => tab.act(() => changeSettings(change));
    tab.now = () => settings.value;
    tabs.add(tab);
    return tab;
  };
  return { openTab, onDevice: () => JSON.parse(localStorage.getItem(KEY)) };
}

test("a tab that keeps nothing leaves on the device what another one keeps", async () => {
  const { openTab, onDevice } = browser();
  const before = await openTab();
  const keeper = await openTab();
  keeper.change({ apiKey: "secret", isKept: true });
  before.change({ model: "other" });
  await before.reload();
  assert.equal(onDevice().apiKey, "secret");
  assert.equal((await openTab()).now().apiKey, "secret");
});

test("what one tab removes from the device, another one does not bring back", async () => {
  const { openTab, onDevice } = browser();
  const first = await openTab();
  first.change({ apiKey: "secret", isKept: true });
  const second = await openTab();
  const asleep = await openTab();
  asleep.close();
  second.change({ isKept: false });
  assert.equal(onDevice(), null);
  first.change({ model: "other" });
  assert.deepEqual([onDevice(), first.now().isKept, first.now().apiKey], [null, false, "secret"]);
  const woken = await asleep.reload();
  woken.change({ model: "other" });
  assert.deepEqual([onDevice(), woken.now().isKept], [null, false]);
});

test("a tab that is loaded again does not undo what another one has kept since", async () => {
  const { openTab, onDevice } = browser();
  const first = await openTab();
  first.change({ isKept: true });
  const second = await openTab();
  second.change({ apiKey: "secret" });
  await first.reload();
  assert.equal(onDevice().apiKey, "secret");
});
