// Where conversations are kept: IndexedDB, or the page's memory where that is not to be had
// (some private windows). Titles are apart from texts, so that the list is quick to load.

import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import { type Conversation, merged } from "./conversation.js";
import { readConversation } from "./read_conversation.js";

/** What the list of conversations shows. */
export interface Head {
  readonly id: string;
  readonly title: string;
  readonly updatedAt: number;
}

export interface Library {
  /** Whether it outlives the page. */
  readonly isLasting: boolean;
  heads(): Promise<Head[]>;
  load(id: string): Promise<Conversation | null>;
  all(): Promise<Conversation[]>;
  /** Keeps `conversation`, together with what another tab has added since; returns both as one. */
  save(conversation: Conversation): Promise<Conversation>;
  remove(id: string): Promise<void>;
  /** Ids of the conversations in which `words` occur. */
  search(words: string): Promise<Set<string>>;
  /** Has `hear` know of each conversation that another tab keeps or deletes. */
  listen(hear: (id: string) => void): void;
}

/** Longest list that is shown: the newest ones. */
const MAX_HEADS = 2_000;

interface Schema extends DBSchema {
  heads: { key: string; value: Head; indexes: { updatedAt: number } };
  bodies: { key: string; value: Conversation };
}

/** Opens the library of this device, or one in memory. */
export async function openLibrary(): Promise<Library> {
  try {
    const database = await openDB<Schema>("loquent", 1, {
      upgrade(database) {
        database.createObjectStore("heads", { keyPath: "id" }).createIndex("updatedAt", "updatedAt");
        database.createObjectStore("bodies", { keyPath: "id" });
      },
    });
    return new DeviceLibrary(database);
  } catch {
    return new MemoryLibrary();
  }
}

function headOf({ id, title, updatedAt }: Conversation): Head {
  return { id, title, updatedAt };
}

/** Whether all of `words` occur in what was said. */
function mentions(conversation: Conversation, words: readonly string[]): boolean {
  const texts = [conversation.title, ...conversation.turns.map(({ message }) => message.text)];
  const lower = texts.map((text) => text.toLowerCase());
  return words.every((word) => lower.some((text) => text.includes(word)));
}

function wordsOf(search: string): string[] {
  return search.toLowerCase().split(/\s+/).filter((word) => word !== "");
}

class DeviceLibrary implements Library {
  readonly isLasting = true;
  /** When each conversation was changed last, as far as this tab knows. */
  readonly #known = new Map<string, number>();
  readonly #tabs = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("loquent:library");

  constructor(readonly database: IDBPDatabase<Schema>) {}

  async heads(): Promise<Head[]> {
    const heads: Head[] = [];
    let cursor = await this.database.transaction("heads").store.index("updatedAt").openCursor(null, "prev");
    while (cursor && heads.length < MAX_HEADS) {
      heads.push(cursor.value);
      cursor = await cursor.continue();
    }
    return heads;
  }

  async load(id: string): Promise<Conversation | null> {
    const conversation = readConversation(await this.database.get("bodies", id));
    if (conversation) this.#known.set(id, conversation.updatedAt);
    return conversation;
  }

  async all(): Promise<Conversation[]> {
    const all = await this.database.getAll("bodies", null, MAX_HEADS);
    return all.flatMap((one) => readConversation(one) ?? []);
  }

  async save(conversation: Conversation): Promise<Conversation> {
    const writing = this.database.transaction(["heads", "bodies"], "readwrite");
    const bodies = writing.objectStore("bodies");
    const kept = readConversation(await bodies.get(conversation.id));
    const isForeign = kept !== null && kept.updatedAt !== this.#known.get(kept.id);
    const whole = isForeign ? merged(conversation, kept) : conversation;
    const heads = writing.objectStore("heads").put(headOf(whole));
    await Promise.all([heads, bodies.put(whole), writing.done]);
    this.#known.set(whole.id, whole.updatedAt);
    this.#tabs?.postMessage(whole.id);
    return whole;
  }

  async remove(id: string): Promise<void> {
    const writing = this.database.transaction(["heads", "bodies"], "readwrite");
    await Promise.all([writing.objectStore("heads").delete(id), writing.objectStore("bodies").delete(id), writing.done]);
    this.#tabs?.postMessage(id);
  }

  listen(hear: (id: string) => void): void {
    this.#tabs?.addEventListener("message", ({ data }) => {
      if (typeof data === "string") hear(data);
    });
  }

  async search(search: string): Promise<Set<string>> {
    const [words, found] = [wordsOf(search), new Set<string>()];
    let cursor = await this.database.transaction("bodies").store.openCursor();
    while (cursor) {
      const conversation = readConversation(cursor.value);
      if (conversation && mentions(conversation, words)) found.add(conversation.id);
      cursor = await cursor.continue();
    }
    return found;
  }
}

class MemoryLibrary implements Library {
  readonly isLasting = false;
  readonly #kept = new Map<string, Conversation>();

  async heads(): Promise<Head[]> {
    return [...this.#kept.values()].map(headOf).sort((one, other) => other.updatedAt - one.updatedAt);
  }

  async load(id: string): Promise<Conversation | null> {
    return this.#kept.get(id) ?? null;
  }

  async all(): Promise<Conversation[]> {
    return [...this.#kept.values()];
  }

  async save(conversation: Conversation): Promise<Conversation> {
    this.#kept.set(conversation.id, conversation);
    return conversation;
  }

  async remove(id: string): Promise<void> {
    this.#kept.delete(id);
  }

  async search(search: string): Promise<Set<string>> {
    const words = wordsOf(search);
    const found = [...this.#kept.values()].filter((one) => mentions(one, words));
    return new Set(found.map(({ id }) => id));
  }

  /** No other tab sees this one's memory. */
  listen(): void {}
}
