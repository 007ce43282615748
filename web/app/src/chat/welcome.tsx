// The empty conversation: what is served here, what one may ask, and what else one can do with it.

import type { VNode } from "preact";
import { Icon } from "../shell/icons.js";
import { ask } from "./chats.js";
import { dialogue } from "./layout.js";
import { isDemonstration, server } from "./server.js";
import { MessageView } from "./turn.js";

/** Questions that the demonstration model can answer. */
const DEMONSTRATION_STARTERS = [
  "What is token streaming?",
  "How do I use my own model?",
  "How does Loquent batch requests?",
  "What is head-of-line blocking?",
  "Tell me a long story.",
];

const STARTERS = [
  "Explain how a rainbow forms",
  "Plan a relaxed weekend in a city I have never visited",
  "Write a Python function that finds duplicate files",
  "Give me three questions to understand a contract better",
];

export function Welcome(): VNode {
  const state = server.value;
  const starters = isDemonstration() ? DEMONSTRATION_STARTERS : STARTERS;
  return (
    <section class="welcome" aria-label="Welcome">
      <img src="favicon.svg" alt="" width="44" height="44" />
      <Introduction />
      {state.is === "ready" && !state.wantsKey && (
        <div id="starters" class="starters" onPointerEnter={MessageView.preload}>
          {starters.map((starter) => (
            <button key={starter} type="button" onClick={() => ask(starter)}>
              {starter}
            </button>
          ))}
        </div>
      )}
      <div class="ways">
        <button type="button" onClick={() => (dialogue.value = "connect")}>
          <Icon name="plug" /> Connect an app
        </button>
        <button type="button" onClick={() => (dialogue.value = "models")}>
          <Icon name="add" /> {isDemonstration() ? "Use your own model" : "Models"}
        </button>
        <a class="button" href="lab">
          <Icon name="lab" /> See it on a bad network
        </a>
      </div>
    </section>
  );
}

function Introduction(): VNode {
  const state = server.value;
  if (state.is === "loading") return <p class="lead">The server is getting ready: {state.why}</p>;
  if (state.is !== "ready") return <p class="lead">Ask something, and watch it arrive token by token.</p>;
  if (!isDemonstration()) {
    return (
      <p class="lead">
        Loquent serves <strong>{state.name}</strong>. Ask it something, and watch it arrive token by token.
      </p>
    );
  }
  return (
    <>
      <p class="lead">
        Loquent serves <strong>{state.name}</strong>, a 2.6 MB demonstration model that only knows about streaming.
      </p>
      <p class="faint">Its answers are shown at reading speed, so that you can watch them arrive token by token.</p>
    </>
  );
}
