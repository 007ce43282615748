// A modal dialog: the browser's own, which keeps the focus inside and closes on Escape.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { IconButton } from "./controls.js";

export interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: DialogProps): VNode {
  const element = useRef<HTMLDialogElement | null>(null);
  const heading = useId();
  useEffect(() => element.current?.showModal(), []);
  const closeOutside = (event: MouseEvent): void => {
    if (event.target === element.current) onClose();
  };
  return (
    <dialog ref={element} aria-labelledby={heading} onClose={onClose} onClick={closeOutside}>
      <div class="dialog-body">
        <header>
          <h2 id={heading}>{title}</h2>
          <IconButton icon="close" label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}
