// The charts' colours: those of the style sheet, which a canvas cannot read by itself.

const NAMES = ["ink", "faint", "line", "series-1", "series-2", "series-3", "series-4"] as const;

export type ColourName = (typeof NAMES)[number];

export type Palette = Readonly<Record<ColourName, string>>;

/** The colours as they are in the theme of `inside`. */
export function readPalette(inside: HTMLElement): Palette {
  const probe = inside.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colours = NAMES.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color] as const;
  });
  probe.remove();
  return Object.fromEntries(colours) as Palette;
}

/** Calls `onChange` whenever the page changes between light and dark; returns how to stop that. */
export function watchTheme(onChange: () => void): () => void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = new MutationObserver(onChange);
  system.addEventListener("change", onChange);
  chosen.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  return () => {
    system.removeEventListener("change", onChange);
    chosen.disconnect();
  };
}
