// Where a text that grows may be interrupted: between words, never inside one.

/** Scripts that are written without spaces: each of their characters may stand alone. */
const ALONE = /[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Myanmar}]/u;

/** The first place in `piece`, which follows `before`, that is inside no word; `null` if there is none. */
export function wordEnd(before: string, piece: string): number | null {
  let left = lastCharacter(before);
  let at = 0;
  for (const right of piece) {
    if (isBetweenWords(left, right)) return at;
    left = right;
    at += right.length;
  }
  return /\s/.test(left) ? at : null;
}

/** Whether a text may be interrupted between the characters `left` and `right`; `""` is its beginning or end. */
export function isBetweenWords(left: string, right: string): boolean {
  if (left === "" || right === "" || /\s/.test(left) || /\s/.test(right)) return true;
  // What modifies a character, such as an accent or a joiner, goes with it.
  return ALONE.test(left) && ALONE.test(right) && !/[\p{M}\p{Cf}]/u.test(right);
}

/** The last character of `text`; of a surrogate pair both halves. */
function lastCharacter(text: string): string {
  return [...text.slice(-2)].at(-1) ?? "";
}
