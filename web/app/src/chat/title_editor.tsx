// The title of a conversation, being written anew in its place.

import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { rename } from "./chats.js";

interface TitleEditorProps {
  readonly id: string;
  readonly title: string;
  readonly onDone: () => void;
}

export function TitleEditor({ id, title, onDone }: TitleEditorProps): VNode {
  const field = useRef<HTMLInputElement | null>(null);
  useEffect(() => field.current?.select(), []);
  const finish = (isKept: boolean): void => {
    if (isKept && field.current) void rename(id, field.current.value);
    onDone();
  };
  const handleKey = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    finish(event.key === "Enter");
  };
  return (
    <li>
      <input ref={field} aria-label="Title" maxLength={100} defaultValue={title} onKeyDown={handleKey} onBlur={() => finish(true)} />
    </li>
  );
}
