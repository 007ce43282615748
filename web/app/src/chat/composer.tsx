// Where questions are written: text, files, how much of the context is used, send and stop.

import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { prepare } from "@loquent/client";
import { IconButton } from "../shell/controls.js";
import { Icon } from "../shell/icons.js";
import { lazy, withPart } from "../shell/lazy.js";
import { ask, current, isRunning, stop } from "./chats.js";
import { isComposing } from "./composing.js";
import { shownPath } from "./conversation.js";
import { draft, files } from "./draft.js";
import { atEnd, goToEnd } from "./end.js";
import { dialogue, editedTurn } from "./layout.js";
import { ENDPOINT } from "./running.js";
import { chosenModel, wantsKey } from "./server.js";
import { ToastView, say } from "./toast.js";
import { MessageView } from "./turn.js";

const ContextGauge = lazy(async () => (await import("./gauge.js")).ContextGauge);

/** The composer grows with its text up to this height, px. */
const MAX_HEIGHT = 240;

export function Composer(): VNode {
  const prompt = useRef<HTMLTextAreaElement | null>(null);
  const isOnItsWay = isRunning();
  useLayoutEffect(() => grow(prompt.current), [draft.value]);
  useEffect(() => takeDroppedFiles(), []);
  useEffect(() => {
    // Where a focus opens a keyboard over half of the page, it is left to the reader.
    const isTouched = matchMedia("(pointer: coarse)").matches;
    if (!isOnItsWay && !isTouched && editedTurn.peek() === null) prompt.current?.focus({ preventScroll: true });
  }, [isOnItsWay]);
  const send = (event: Event): void => {
    event.preventDefault();
    submit();
  };
  return (
    <form id="composer" class="composer" aria-label="Ask" onSubmit={send}>
      <ToastView />
      {!atEnd.value && current.value.leaf !== null && <IconButton class="jump" icon="down" label="Go to the end" onClick={() => goToEnd("smooth")} />}
      <div class="card">
        <AttachedFiles />
        <textarea
          id="prompt"
          ref={prompt}
          rows={1}
          dir="auto"
          placeholder="Ask something…"
          aria-label="Message"
          value={draft.value}
          onInput={handleInput}
          onKeyDown={handleKey}
          onPaste={handlePaste}
          // An idle connection may have ended: a new one opens while the question is being typed.
          onFocus={() => void prepare(ENDPOINT)}
        />
        <div class="tools">
          <FilePicker />
          <ContextGauge />
          <span class="space" />
          {isOnItsWay && <IconButton id="device" icon="phone" label="Continue on another device" onClick={() => (dialogue.value = "device")} />}
          {isOnItsWay ? (
            <button id="stop" class="round" type="button" title="Stop (Escape)" aria-label="Stop" onClick={stop}>
              <Icon name="stop" />
            </button>
          ) : (
            <button id="send" class="round primary" type="submit" title="Send (Enter)" aria-label="Send" disabled={isEmpty()}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}

function handleInput(event: Event): void {
  draft.value = (event.currentTarget as HTMLTextAreaElement).value;
  MessageView.preload();
}

function isEmpty(): boolean {
  return draft.value.trim() === "" && files.value.length === 0;
}

function submit(): void {
  if (isEmpty()) return;
  if (isRunning()) return say("The answer is not complete: wait for it, or stop it with Escape.");
  // The question waits in its field until the key is there.
  if (wantsKey()) return document.getElementById("wanted-key")?.focus();
  const [text, attached] = [draft.peek().trim(), files.peek()];
  draft.value = "";
  files.value = [];
  ask(text, attached);
}

function handleKey(event: KeyboardEvent): void {
  if (isComposing(event)) return;
  if (event.key === "ArrowUp" && draft.peek() === "" && !isRunning()) return editLast(event);
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  submit();
}

function editLast(event: KeyboardEvent): void {
  const last = shownPath(current.peek()).findLast(({ message }) => message.role === "user");
  if (!last) return;
  event.preventDefault();
  editedTurn.value = last.id;
}

function grow(prompt: HTMLTextAreaElement | null): void {
  if (prompt === null) return;
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, MAX_HEIGHT)}px`;
}

function handlePaste(event: ClipboardEvent): void {
  const pasted = [...(event.clipboardData?.files ?? [])];
  if (pasted.length === 0) return;
  event.preventDefault();
  attach(pasted);
}

/** Attaches what can be read as text; says what cannot. */
function attach(chosen: readonly File[]): void {
  withPart(import("./files.js"), async ({ readFiles }) => {
    const { read, refused } = await readFiles(chosen, files.peek(), chosenModel());
    files.value = [...files.peek(), ...read];
    if (refused !== null) say(refused);
    document.getElementById("prompt")?.focus();
  });
}

/** Files may be dropped anywhere on the page. */
function takeDroppedFiles(): () => void {
  const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
  const over = (event: DragEvent): void => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  };
  const leave = (event: DragEvent): void => {
    if (event.relatedTarget === null) document.body.classList.remove("dropping");
  };
  const drop = (event: DragEvent): void => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    attach([...(event.dataTransfer?.files ?? [])]);
  };
  document.addEventListener("dragover", over);
  document.addEventListener("dragleave", leave);
  document.addEventListener("drop", drop);
  return () => {
    document.removeEventListener("dragover", over);
    document.removeEventListener("dragleave", leave);
    document.removeEventListener("drop", drop);
  };
}

function AttachedFiles(): VNode | null {
  if (files.value.length === 0) return null;
  const remove = (name: string): void => void (files.value = files.peek().filter((file) => file.name !== name));
  return (
    <ul class="attached" aria-label="Attached files">
      {files.value.map(({ name, ...file }) => (
        <li key={name}>
          {"image" in file && <img src={file.image} alt="" />}
          {name} <IconButton icon="close" label={`Remove ${name}`} onClick={() => remove(name)} />
        </li>
      ))}
    </ul>
  );
}

function FilePicker(): VNode {
  const input = useRef<HTMLInputElement | null>(null);
  const handleFiles = (event: Event): void => {
    const picker = event.currentTarget as HTMLInputElement;
    attach([...(picker.files ?? [])]);
    picker.value = "";
  };
  return (
    <>
      <IconButton icon="attach" label="Attach text, PDFs and pictures" onClick={() => input.current?.click()} />
      <input id="files" ref={input} class="unseen" type="file" multiple aria-label="Text, PDFs and pictures" tabIndex={-1} onChange={handleFiles} />
    </>
  );
}
