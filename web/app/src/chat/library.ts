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
  all(): AsyncIterable<Conversation>;
  /** Keeps `conversation`, together with what another tab has added since; returns both as one. */
  save(conversation: Conversation): Promise<Conversation>;
  remove(id: string): Promise<void>;
  /** Has `hear` know of each conversation that another tab keeps or deletes, and `receives` tell other tabs which answers come to this one. */
  listen(hear: (id: string) => void, receives: (turn: string) => boolean): void;
  /** Whether another tab receives the answer `turn`. */
  isReceived(turn: string): Promise<boolean>;
}

/** Longest list that is shown: the newest ones. */
const MAX_HEADS = 2_000;

/** How long another tab may take to say that it receives an answer, ms. */
const HEAR_MS = 1_000;

/** Errors of a connection to the database that is lost: browsers close those of tabs in the background. */
const LOST = ["InvalidStateError", "UnknownError", "AbortError"];

interface Schema extends DBSchema {
  heads: { key: string; value: Head; indexes: { updatedAt: number } };
  bodies: { key: string; value: Conversation };
}

type Database = IDBPDatabase<Schema>;

/** Opens the library of this device, or one in memory. */
export async function openLibrary(open = openDatabase): Promise<Library> {
  try {
    return new DeviceLibrary(await open(), open);
  } catch {
    return new MemoryLibrary();
  }
}

function openDatabase(): Promise<Database> {
  return openDB<Schema>("loquent", 1, {
    upgrade(database) {
      database.createObjectStore("heads", { keyPath: "id" }).createIndex("updatedAt", "updatedAt");
      database.createObjectStore("bodies", { keyPath: "id" });
    },
  });
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

/** Ids of those of `conversations` in which the words of `search` occur. */
export async function idsWith(search: string, conversations: AsyncIterable<Conversation>): Promise<Set<string>> {
  const words = search.toLowerCase().split(/\s+/);
  const found = new Set<string>();
  for await (const one of conversations) if (mentions(one, words)) found.add(one.id);
  return found;
}

/** Keeps `conversation`, with what another tab has kept since `known`; returns both as one. */
async function keep(database: Database, conversation: Conversation, known: number | undefined): Promise<Conversation> {
  const writing = database.transaction(["heads", "bodies"], "readwrite");
  const bodies = writing.objectStore("bodies");
  const kept = readConversation(await bodies.get(conversation.id));
  const whole = kept !== null && kept.updatedAt !== known ? merged(conversation, kept) : conversation;
  await Promise.all([writing.objectStore("heads").put(headOf(whole)), bodies.put(whole), writing.done]);
  return whole;
}

class DeviceLibrary implements Library {
  readonly isLasting = true;
  /** When each conversation was changed last, as far as this tab knows. */
  readonly #known = new Map<string, number>();
  readonly #tabs = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("loquent:library");
  #hasAsked = false;
  #database: Database;

  constructor(
    database: Database,
    readonly open: () => Promise<Database>,
  ) {
    this.#database = database;
  }

  /** What `act` makes of the database, over a new connection if this one is lost. */
  async #use<T>(act: (database: Database) => Promise<T>): Promise<T> {
    try {
      return await act(this.#database);
    } catch (error) {
      if (!LOST.includes((error as Error).name)) throw error;
      this.#database.close();
      this.#database = await this.open();
      return await act(this.#database);
    }
  }

  heads(): Promise<Head[]> {
    return this.#use(async (database) => {
      const heads: Head[] = [];
      let cursor = await database.transaction("heads").store.index("updatedAt").openCursor(null, "prev");
      while (cursor && heads.length < MAX_HEADS) {
        heads.push(cursor.value);
        cursor = await cursor.continue();
      }
      return heads;
    });
  }

  async load(id: string): Promise<Conversation | null> {
    const conversation = await this.#read(id);
    if (conversation) this.#known.set(id, conversation.updatedAt);
    return conversation;
  }

  async #read(id: string): Promise<Conversation | null> {
    return readConversation(await this.#use(async (database) => database.get("bodies", id)));
  }

  async *all(): AsyncGenerator<Conversation> {
    const ids = await this.#use(async (database) => database.getAllKeys("bodies"));
    for (const id of ids) {
      const conversation = await this.#read(id);
      if (conversation) yield conversation;
    }
  }

  async save(conversation: Conversation): Promise<Conversation> {
    const { id, updatedAt } = conversation;
    const known = this.#known.get(id);
    // What this tab keeps next has this in it already, even if it comes before the end of this.
    this.#known.set(id, updatedAt);
    this.#askToStay();
    const whole = await this.#use((database) => keep(database, conversation, known));
    if (whole !== conversation) this.#known.set(id, whole.updatedAt);
    this.#tabs?.postMessage(id);
    return whole;
  }

  /** Asks the browser to delete nothing of this when it runs out of room. */
  #askToStay(): void {
    if (!this.#hasAsked) void globalThis.navigator?.storage?.persist?.().catch(() => {});
    this.#hasAsked = true;
  }

  async remove(id: string): Promise<void> {
    await this.#use(async (database) => {
      const writing = database.transaction(["heads", "bodies"], "readwrite");
      await Promise.all([writing.objectStore("heads").delete(id), writing.objectStore("bodies").delete(id), writing.done]);
    });
    this.#tabs?.postMessage(id);
  }

  listen(hear: (id: string) => void, receives: (turn: string) => boolean): void {
    this.#tabs?.addEventListener("message", ({ data }) => {
      if (typeof data === "string") hear(data);
      else if (receives(data.sought)) this.#tabs?.postMessage({ received: data.sought });
    });
  }

  isReceived(turn: string): Promise<boolean> {
    return new Promise((resolve) => {
      const hear = ({ data }: MessageEvent): void => void (data.received === turn && resolve(true));
      this.#tabs?.addEventListener("message", hear);
      this.#tabs?.postMessage({ sought: turn });
      setTimeout(() => {
        this.#tabs?.removeEventListener("message", hear);
        resolve(false);
      }, HEAR_MS);
    });
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

  async *all(): AsyncGenerator<Conversation> {
    yield* this.#kept.values();
  }

  async save(conversation: Conversation): Promise<Conversation> {
    this.#kept.set(conversation.id, conversation);
    return conversation;
  }

  async remove(id: string): Promise<void> {
    this.#kept.delete(id);
  }

  /** No other tab sees this one's memory. */
  listen(): void {}

  async isReceived(): Promise<boolean> {
    return false;
  }
}
