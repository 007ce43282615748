// A question that is being written anew, in its place.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { editQuestion } from "./chats.js";
import { isComposing } from "./composing.js";
import type { Turn } from "./conversation.js";
import { editedTurn } from "./layout.js";

export function QuestionEditor({ turn }: { readonly turn: Turn }): VNode {
  const text = useSignal(turn.message.text);
  const field = useRef<HTMLTextAreaElement | null>(null);
  useEffect(() => {
    field.current?.focus();
    field.current?.setSelectionRange(text.peek().length, text.peek().length);
  }, []);
  const close = (): void => void (editedTurn.value = null);
  const send = (event: Event): void => {
    event.preventDefault();
    const edited = text.value.trim();
    if (edited === "") return;
    close();
    editQuestion(turn, edited);
  };
  const handleKey = (event: KeyboardEvent): void => {
    if (isComposing(event)) return;
    if (event.key === "Enter" && !event.shiftKey) send(event);
    if (event.key !== "Escape") return;
    event.preventDefault();
    close();
  };
  return (
    <form class="turn editor" aria-label="Edit the question" onSubmit={send}>
      <textarea
        ref={field}
        aria-label="Question"
        rows={3}
        dir="auto"
        value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={handleKey}
      />
      <span class="buttons">
        <button type="submit" class="primary">
          Send
        </button>
        <button type="button" onClick={close}>
          Cancel
        </button>
      </span>
    </form>
  );
}
