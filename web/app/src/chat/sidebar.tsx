// The list of conversations: search, rename, delete, import and export; the way to the other pages.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { IconButton } from "../shell/controls.js";
import { Brand, PageLinks } from "../shell/header.js";
import { Icon } from "../shell/icons.js";
import { lazy, withPart } from "../shell/lazy.js";
import { newChat, sidebarOpen, uncover } from "./layout.js";
import { current, heads, isLasting, openConversation, remove, running, search } from "./chats.js";
import type { Head } from "./library.js";

const TitleEditor = lazy(async () => (await import("./title_editor.js")).TitleEditor);

/** Searching begins after a pause in typing of this length, ms. */
const SEARCH_AFTER_MS = 150;

/** Titles that are shown at first, and how many more each time. */
const SHOWN = 100;

const DAY_MS = 86_400_000;

export function Sidebar(): VNode | null {
  if (!sidebarOpen.value) return null;
  return (
    <aside class="sidebar" aria-label="Conversations">
      <div class="sidebar-head">
        <Brand />
        <IconButton icon="left" label="Hide the list" onClick={() => (sidebarOpen.value = false)} />
      </div>
      <button id="new" class="new-chat" type="button" onClick={newChat}>
        <Icon name="edit" /> New chat
      </button>
      <History />
      <div class="sidebar-foot">
        <Transfers />
        <PageLinks current="chat" />
      </div>
    </aside>
  );
}

function History(): VNode {
  const words = useSignal("");
  const found = useSignal<ReadonlySet<string> | null>(null);
  const shown = useSignal(SHOWN);
  useEffect(() => {
    if (words.value.trim() === "") return void (found.value = null);
    const timer = setTimeout(() => void search(words.value).then((ids) => (found.value = ids)), SEARCH_AFTER_MS);
    return () => clearTimeout(timer);
  }, [words.value]);
  const all = heads.value.filter(({ id }) => found.value?.has(id) ?? true);
  return (
    <>
      <label class="search">
        <Icon name="search" />
        <span class="unseen">Search conversations</span>
        <input
          id="search"
          type="search"
          placeholder="Search"
          value={words.value}
          onInput={(event) => (words.value = event.currentTarget.value)}
        />
      </label>
      <nav class="history" aria-label="History">
        {!isLasting.value && <p class="faint">This browser keeps nothing for the page: conversations end with it.</p>}
        {all.length === 0 && <p class="faint">{found.value ? "Nothing found." : isLasting.value && "Conversations are kept here, on this device only."}</p>}
        {groups(all.slice(0, shown.value)).map(([name, items]) => (
          <section key={name}>
            <h2>{name}</h2>
            <ul>
              {items.map((head) => (
                <Item key={head.id} head={head} />
              ))}
            </ul>
          </section>
        ))}
        {all.length > shown.value && (
          <button type="button" onClick={() => (shown.value += SHOWN)}>
            Show more
          </button>
        )}
      </nav>
    </>
  );
}

/** `items`, which are newest first, by how long ago they were. */
function groups(items: readonly Head[]): [string, Head[]][] {
  const today = new Date().setHours(0, 0, 0, 0);
  const groups = new Map<string, Head[]>();
  for (const head of items) {
    const name = age(head.updatedAt, today);
    groups.set(name, [...(groups.get(name) ?? []), head]);
  }
  return [...groups];
}

function age(at: number, today: number): string {
  if (at >= today) return "Today";
  if (at >= today - DAY_MS) return "Yesterday";
  if (at >= today - 7 * DAY_MS) return "Last 7 days";
  return at >= today - 30 * DAY_MS ? "Last 30 days" : "Older";
}

function Item({ head: { id, title } }: { readonly head: Head }): VNode {
  const isEdited = useSignal(false);
  const isCurrent = id === current.value.id;
  const open = (): void => {
    if (!isCurrent) void openConversation(id);
    uncover();
  };
  if (isEdited.value) return <TitleEditor id={id} title={title} onDone={() => (isEdited.value = false)} />;
  return (
    <li class={isCurrent ? "current" : ""}>
      <button type="button" class="title" title={title} onClick={open} {...(isCurrent && { "aria-current": "true" as const })}>
        {running.value.has(id) && <span class="dot streaming" title="An answer is on its way" />}
        {title || "Untitled"}
      </button>
      <IconButton icon="edit" label={`Rename “${title}”`} onClick={() => (isEdited.value = true)} />
      <IconButton icon="trash" label={`Delete “${title}”`} onClick={() => void remove(id)} />
    </li>
  );
}

/** Import and export of all conversations. */
function Transfers(): VNode {
  const file = useRef<HTMLInputElement | null>(null);
  const importFrom = ({ currentTarget: input }: Event): void =>
    withPart(import("./transfers.js"), ({ importFiles }) => void importFiles(input as HTMLInputElement));
  return (
    <div class="transfers">
      <button type="button" onClick={() => file.current?.click()}>
        Import
      </button>
      <button type="button" onClick={() => withPart(import("./transfers.js"), ({ exportAll }) => void exportAll())}>
        Export
      </button>
      <input ref={file} class="unseen" type="file" multiple accept="application/json,.json" aria-label="Files to import" tabIndex={-1} onChange={importFrom} />
    </div>
  );
}
