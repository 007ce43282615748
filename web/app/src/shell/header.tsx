// The head of the pages that are not the chat: name, the way to the other pages, theme.

import type { ComponentChildren, VNode } from "preact";
import { ThemeButton } from "./controls.js";
import { Icon, type IconName } from "./icons.js";

export type PageName = "chat" | "lab" | "dashboard" | "docs";

const PAGES: readonly { name: PageName; path: string; title: string; icon: IconName }[] = [
  { name: "chat", path: "./", title: "Chat", icon: "chat" },
  { name: "lab", path: "lab", title: "Laboratory", icon: "lab" },
  { name: "dashboard", path: "dashboard", title: "Dashboard", icon: "chart" },
  { name: "docs", path: "docs", title: "Docs", icon: "book" },
];

/** Links to the pages and to the book. */
export function PageLinks({ current }: { readonly current: PageName }): VNode {
  return (
    <nav class="pages" aria-label="Pages">
      {PAGES.map(({ name, path, title, icon }) => (
        <a key={name} href={path} aria-label={title} {...(name === current && { "aria-current": "page" as const })}>
          <Icon name={icon} />
          <span>{title}</span>
        </a>
      ))}
    </nav>
  );
}

export function Brand(): VNode {
  return (
    <span class="brand">
      <img src="favicon.svg" alt="" width="20" height="20" /> Loquent
    </span>
  );
}

/** The header; `children` is the page's own. */
export function PageHeader({ current, children }: { readonly current: PageName; readonly children?: ComponentChildren }): VNode {
  return (
    <header class="page-header">
      <Brand />
      <PageLinks current={current} />
      <span class="space" />
      {children}
      <ThemeButton />
    </header>
  );
}
