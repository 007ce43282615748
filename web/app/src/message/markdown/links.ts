// Which addresses in a model's text may become links.

/** Longer addresses stay text. */
const LONGEST = 2_000;

const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** `href` as a browser would read it, if it leads where links may lead; else `null`. */
export function safeHref(href: string): string | null {
  // Relative addresses would lead into this server's own pages.
  if (href.length > LONGEST || !/^[a-z]+:/i.test(href)) return null;
  try {
    const url = new URL(href);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** A link that tells the other side nothing of this page; `null` where there may be none. */
export function linkTo(href: string): HTMLAnchorElement | null {
  const safe = safeHref(href);
  if (safe === null) return null;
  const link = document.createElement("a");
  link.href = safe;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  // What the text says need not be where it leads.
  link.title = safe;
  return link;
}
