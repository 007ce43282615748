// The pages' icons: plain strokes of one weight, in the colour of the text around them.

import type { VNode } from "preact";

const PATHS = {
  add: "M12 5v14M5 12h14",
  attach: "M20 11.5 12 19.5a5 5 0 0 1-7-7l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8l-8.4 8.4a1.7 1.7 0 0 1-2.4-2.4l7.6-7.6",
  book: "M4 5h6a2 2 0 0 1 2 2 2 2 0 0 1 2-2h6v13h-6a2 2 0 0 0-2 2 2 2 0 0 0-2-2H4zM12 7v13",
  check: "M5 12.5 10 17.5 19 7",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM5 15V4h10",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  gauge: "M4 18a9 9 0 1 1 16 0M12 15l4-6",
  key: "M14 10a4 4 0 1 0-2.5 3.7L14 16h2v2h2v2h3v-3l-7.2-7.2z",
  lab: "M9 3h6M10 3v6L5 19a1.4 1.4 0 0 0 1.3 2h11.4a1.4 1.4 0 0 0 1.3-2L14 9V3M7.5 15h9",
  left: "M15 5l-7 7 7 7",
  menu: "M4 6h16M4 12h16M4 18h16",
  moon: "M20 14.5A8.5 8.5 0 1 1 9.5 4 7 7 0 0 0 20 14.5z",
  phone: "M8 3h8a1 1 0 0 1 1 1v16a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V4a1 1 0 0 1 1-1zM11 18h2",
  plug: "M9 3v5M15 3v5M6 8h12v3a6 6 0 0 1-12 0zM12 17v4",
  chart: "M4 20V10M10 20V4M16 20v-7M21 20H3",
  chat: "M4 5h16v11H11l-5 4v-4H4z",
  right: "M9 5l7 7-7 7",
  retry: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  screen: "M4 5h16v11H4zM9 20h6M12 16v4",
  search: "M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14zM16 16l4.5 4.5",
  send: "M12 19V5M6 11l6-6 6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M13 4.5v5M7 14.5v5",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M5 19l1.4-1.4M17.6 6.4 19 5",
  transfer: "M4 8h14l-4-4M20 16H6l4 4",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { readonly name: IconName }): VNode {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
