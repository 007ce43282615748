// Components whose code is loaded when they are first shown, so that the first load stays small.

import { signal } from "@preact/signals";
import type { ComponentType, VNode } from "preact";
import { useEffect } from "preact/hooks";

export interface Lazy<Props> {
  (props: Props): VNode | null;
  /** Loads the code now: it will be needed soon. */
  readonly preload: () => void;
}

/** A part of the page could not be loaded: the connection is gone, or the server was replaced. */
export const isPartMissing = signal(false);

/** Does `act` with a part of the page, once it is loaded; what is missing is told. */
export function withPart<Part>(part: Promise<Part>, act: (part: Part) => void): void {
  part.then(act, () => (isPartMissing.value = true));
}

/**
 * The component that `load` brings; `Meanwhile` until it is there, and for good if it cannot be
 * loaded: a server that was replaced has no more the files of this page.
 */
export function lazy<Props extends object>(load: () => Promise<ComponentType<Props>>, Meanwhile: ComponentType<Props> | null = null): Lazy<Props> {
  const loaded = signal<ComponentType<Props> | null>(null);
  // biome-ignore lint/correctness/noUnusedVariables: `??=` reads it
  let loading: Promise<void> | null = null;
  const preload = (): void => {
    loading ??= load().then(
      (component) => void (loaded.value = component),
      () => {
        loading = null;
        isPartMissing.value = true;
      },
    );
  };
  const Shown = (props: Props): VNode | null => {
    useEffect(preload, []);
    const View = loaded.value ?? Meanwhile;
    return View && <View {...props} />;
  };
  return Object.assign(Shown, { preload });
}
