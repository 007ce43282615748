// What can be done about a conversation that is longer than the model can read.

import type { VNode } from "preact";
import { current } from "./chats.js";
import type { Turn } from "./conversation.js";
import { forgetOldest, goOnInNewChat, goOnShorter } from "./shorter.js";

export function ContextNotice({ turn }: { readonly turn: Turn }): VNode {
  const hasOlder = forgetOldest(current.value, 0.5) !== null;
  if (!hasOlder) return <div class="notice">Nothing older is left to leave out: shorten the question, or its files.</div>;
  return (
    <div class="notice">
      <p>A model reads a limited number of tokens at once, and this conversation has outgrown it.</p>
      <span class="buttons">
        <button type="button" class="primary" onClick={() => goOnShorter(turn)}>
          Leave out the oldest turns
        </button>
        <button type="button" onClick={() => goOnInNewChat(turn)}>
          New chat with this question
        </button>
      </span>
    </div>
  );
}
