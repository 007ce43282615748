// What is said where the server answers only with a key: once, and before a question is written in vain.

import type { VNode } from "preact";
import { useSignal } from "@preact/signals";
import { current, failures } from "./chats.js";
import { lookSoon } from "./server.js";
import { changeSettings, settings } from "./settings.js";

export function KeyNotice(): VNode {
  const key = useSignal("");
  const { leaf } = current.value;
  const hasKey = settings.value.apiKey.trim() !== "";
  const enter = (event: Event): void => {
    event.preventDefault();
    changeSettings({ apiKey: key.peek().trim() });
    if (leaf !== null) failures.value = new Map([...failures.peek()].filter(([id]) => id !== leaf));
    lookSoon();
  };
  return (
    <form class="notice key-notice" aria-label="API key" onSubmit={enter}>
      <p>{hasKey ? "This server does not take the API key that the page has." : "This server answers only with an API key."}</p>
      <label>
        <span>API key</span>
        <input id="wanted-key" type="password" autocomplete="off" value={key.value} onInput={(event) => (key.value = event.currentTarget.value)} />
      </label>
      <button type="submit" class="primary" disabled={key.value.trim() === ""}>
        Use it
      </button>
    </form>
  );
}
