// The title of a conversation, being written anew in its place.

import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { conversationOf, current, save } from "./chats.js";
import { isComposing } from "./composing.js";
import { withTitle } from "./conversation.js";

interface TitleEditorProps {
  readonly id: string;
  readonly title: string;
  readonly onDone: () => void;
}

async function rename(id: string, title: string): Promise<void> {
  const found = await conversationOf(id);
  // Meanwhile it may have been opened, or have gone on.
  const conversation = id === current.peek().id ? current.peek() : found;
  if (!conversation || title.trim() === "") return;
  const renamed = withTitle(conversation, title.trim(), Date.now());
  if (id === current.peek().id) current.value = renamed;
  await save(renamed);
}

export function TitleEditor({ id, title, onDone }: TitleEditorProps): VNode {
  const field = useRef<HTMLInputElement | null>(null);
  useEffect(() => field.current?.select(), []);
  const finish = (isKept: boolean): void => {
    if (isKept && field.current) void rename(id, field.current.value);
    onDone();
  };
  const handleKey = (event: KeyboardEvent): void => {
    if (isComposing(event) || (event.key !== "Enter" && event.key !== "Escape")) return;
    event.preventDefault();
    finish(event.key === "Enter");
  };
  return (
    <li>
      <input ref={field} aria-label="Title" maxLength={100} defaultValue={title} onKeyDown={handleKey} onBlur={() => finish(true)} />
    </li>
  );
}
