// Making elements.

/** A new element. */
export function element(name: string, className = ""): HTMLElement {
  const made = document.createElement(name);
  if (className !== "") made.className = className;
  return made;
}

/** `parent`, with `text` in it. */
export function withText<E extends Element>(parent: E, text: string): E {
  parent.append(text);
  return parent;
}
