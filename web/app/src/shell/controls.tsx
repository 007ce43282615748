// Small controls that all pages share.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { copyText } from "./clipboard.js";
import { Icon, type IconName } from "./icons.js";
import { THEMES, type Theme, chooseTheme, keptTheme } from "./theme.js";

export interface IconButtonProps {
  readonly icon: IconName;
  /** What it does: its name for screen readers, and its tooltip. */
  readonly label: string;
  readonly onClick: () => void;
  readonly id?: string;
  readonly class?: string;
  readonly disabled?: boolean;
  readonly expanded?: boolean;
  /** Shown beside the icon. */
  readonly children?: ComponentChildren;
}

export function IconButton(props: IconButtonProps): VNode {
  const { icon, label, onClick, children, expanded, ...rest } = props;
  const name = children ? {} : { "aria-label": label };
  const state = expanded === undefined ? {} : { "aria-expanded": expanded };
  return (
    <button type="button" title={label} onClick={onClick} {...name} {...state} {...rest} class={`icon-button ${rest.class ?? ""}`}>
      <Icon name={icon} />
      {children}
    </button>
  );
}

/** How long "Copied" is shown, ms. */
const COPIED_MS = 1_500;

/** Copies what `text` gives, and says so for a moment. */
export function CopyButton({ text, label = "Copy" }: { readonly text: () => string; readonly label?: string }): VNode {
  const [copied, setCopied] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEffect(() => () => void (timer.current !== null && clearTimeout(timer.current)), []);
  const copy = async (): Promise<void> => {
    setCopied(await copyText(text()));
    if (timer.current !== null) clearTimeout(timer.current);
    timer.current = setTimeout(() => setCopied(false), COPIED_MS);
  };
  return <IconButton class="copy" icon={copied ? "check" : "copy"} label={copied ? "Copied" : label} onClick={() => void copy()} />;
}

const THEME_ICONS: Record<Theme, IconName> = { system: "screen", light: "sun", dark: "moon" };
const THEME_NAMES: Record<Theme, string> = { system: "as the system", light: "light", dark: "dark" };

/** Goes through the themes. */
export function ThemeButton(): VNode {
  const [theme, setTheme] = useState(keptTheme);
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system";
  const label = `Theme: ${THEME_NAMES[theme]}. Change to ${THEME_NAMES[next]}`;
  const change = (): void => {
    chooseTheme(next);
    setTheme(next);
  };
  return <IconButton class="theme" icon={THEME_ICONS[theme]} label={label} onClick={change} />;
}
