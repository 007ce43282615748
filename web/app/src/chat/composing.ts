// Keys that belong to an input method, which makes a character of several of them.

/** Whether `event` is the input method's own. Safari ends a composition before the key that ends it, and marks that key by 229. */
export function isComposing(event: KeyboardEvent): boolean {
  return event.isComposing || event.keyCode === 229;
}
