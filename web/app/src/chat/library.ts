// Where conversations are kept: IndexedDB, or the page's memory where that is not to be had
// (some private windows). Titles are apart from texts, so that the list is quick to load.

import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import { type Conversation, merged, newId } from "./conversation.js";
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
  /**
   * Keeps `conversation`, together with what another tab has added since; returns both as one. What
   * this tab has kept itself is in it only if it is the one that `isShown`: of another one an answer
   * on its way and its user may have a copy each.
   */
  save(conversation: Conversation, isShown?: boolean): Promise<Conversation>;
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
  bodies: { key: string; value: Body };
}

/** A stored conversation. `version` identifies this write of it: two writes may have the same time. */
type Body = Conversation & { readonly version?: string };

/** `null`: it was written when there were no versions. */
function versionOf(body: Body | undefined): string | null {
  return typeof body?.version === "string" ? body.version : null;
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

/** A conversation, and the version as which it is kept. */
interface Kept {
  readonly whole: Conversation;
  readonly version: string;
}

/** Keeps `conversation` as `version`; together with what another tab has kept since `known`, as another one. */
async function keep(database: Database, conversation: Conversation, version: string, known?: string | null): Promise<Kept> {
  const writing = database.transaction(["heads", "bodies"], "readwrite");
  const bodies = writing.objectStore("bodies");
  const body = await bodies.get(conversation.id);
  const before = versionOf(body) === known ? null : readConversation(body);
  const kept = before === null ? { whole: conversation, version } : { whole: merged(conversation, before), version: newId() };
  const { whole } = kept;
  await Promise.all([writing.objectStore("heads").put(headOf(whole)), bodies.put({ ...whole, version: kept.version }), writing.done]);
  return kept;
}

class DeviceLibrary implements Library {
  readonly isLasting = true;
  /** The version of each conversation that this tab knows. */
  readonly #known = new Map<string, string | null>();
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
    const body = await this.#read(id);
    const conversation = readConversation(body);
    if (conversation) this.#known.set(id, versionOf(body));
    return conversation;
  }

  #read(id: string): Promise<Body | undefined> {
    return this.#use(async (database) => database.get("bodies", id));
  }

  async *all(): AsyncGenerator<Conversation> {
    const ids = await this.#use(async (database) => database.getAllKeys("bodies"));
    for (const id of ids) {
      const conversation = readConversation(await this.#read(id));
      if (conversation) yield conversation;
    }
  }

  async save(conversation: Conversation, isShown = true): Promise<Conversation> {
    const { id } = conversation;
    const [version, known] = [newId(), isShown ? this.#known.get(id) : undefined];
    // What this tab shows has this in it already when it is kept next, even if that comes before the end of this.
    if (isShown) this.#known.set(id, version);
    this.#askToStay();
    const kept = await this.#use((database) => keep(database, conversation, version, known));
    if (isShown && kept.version !== version) this.#known.set(id, kept.version);
    this.#tabs?.postMessage(id);
    return kept.whole;
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
