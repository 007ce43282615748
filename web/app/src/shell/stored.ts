// Small JSON values in the browser's storage. What comes out is anybody's: callers check it.

/** Longest value that is read, UTF-16 units. */
const MAX_LENGTH = 1 << 20;

type Place = "tab" | "device";

/** The value under `key`; `null` if there is none that can be read. */
export function readStored(place: Place, key: string): unknown {
  try {
    const text = storage(place).getItem(key);
    return text === null || text.length > MAX_LENGTH ? null : JSON.parse(text);
  } catch {
    return null;
  }
}

/** Keeps `value` under `key` where that is possible; `null` removes what is there. */
export function writeStored(place: Place, key: string, value: unknown): void {
  try {
    if (value === null) storage(place).removeItem(key);
    else storage(place).setItem(key, JSON.stringify(value));
  } catch {
    // No storage, or no room in it: the page remembers while it is open.
  }
}

function storage(place: Place): Storage {
  return place === "tab" ? sessionStorage : localStorage;
}
