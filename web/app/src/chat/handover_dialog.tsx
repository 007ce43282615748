// The QR code and the link by which another device goes on with the answer that is on its way.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { Dialog } from "../shell/dialog.js";
import { WithFlags } from "../shell/with_flags.js";
import { current, handOver, running } from "./chats.js";
import { shownPath } from "./conversation.js";
import { handoverLink, isOnlyHere } from "./handover.js";
import { closeDialogue } from "./layout.js";
import { SECURE_CONTEXT } from "../message/why_sse.js";
import { requestJson } from "./server.js";
import { Snippet } from "./snippet.js";

export function HandoverDialog(): VNode {
  const link = currentLink();
  const leave = (): void => {
    handOver();
    closeDialogue();
  };
  return (
    <Dialog title="Continue on another device" onClose={closeDialogue}>
      {link === null ? (
        <p>The answer is complete, or has not begun: there is nothing to continue.</p>
      ) : (
        <div class="device">
          {isOnlyHere() ? <OnlyHere /> : <QrCode text={link} />}
          <p>
            {isOnlyHere() ? "Until then, another browser on this machine can open the link. It " : "Scan this, or open the link. The other device "}
            reads along from the beginning; both show the whole answer.
          </p>
          {location.protocol === "http:" && (
            <p class="faint">
              Over plain http the other device reads an event stream, which loss holds up. <WithFlags text={SECURE_CONTEXT} />
            </p>
          )}
          {location.protocol === "https:" && <OwnCertificate />}
          <Snippet text={link} label="Copy the link" />
          <p class="faint">Whoever has the link can read this one answer, and stop it.</p>
          <button type="button" onClick={leave}>
            Hand it over, and stop reading here
          </button>
        </div>
      )}
    </Dialog>
  );
}

/** What to do about an address that means another machine elsewhere. */
function OnlyHere(): VNode {
  return (
    <p class="notice">
      This page is open as <code>{location.hostname}</code>, which on another device means that device. Start the server with{" "}
      <code>--host 0.0.0.0</code> and an API key, and open the page under this machine’s address in the network.
    </p>
  );
}

/** What to compare on the other device, whose browser does not know a certificate that the server made itself. */
function OwnCertificate(): VNode | null {
  const sha256 = useSignal("");
  useEffect(() => {
    // A server that does not answer, or has a certificate from an authority, tells nothing.
    void requestJson(".well-known/loquent").then(
      ({ body }) => (sha256.value = fingerprintOf(body)),
      () => undefined,
    );
  }, []);
  if (sha256.value === "") return null;
  return (
    <p class="faint">
      The other browser warns that it does not know this server’s certificate. Before you go on there, compare the certificate’s SHA-256:{" "}
      <code>{sha256.value}</code>
    </p>
  );
}

/** The hash of the server's own certificate as browsers show it; empty where there is none. */
function fingerprintOf(body: unknown): string {
  const { https_certificate_sha256: sha256 } = (body ?? {}) as { https_certificate_sha256?: unknown };
  if (typeof sha256 !== "string" || !/^[0-9a-f]{64}$/.test(sha256)) return "";
  return sha256.toUpperCase().replace(/..(?!$)/g, "$&:");
}

/** The link to the answer that is shown, once it has begun. */
function currentLink(): string | null {
  const reference = running.value.get(current.value.id)?.answer?.reference ?? null;
  const question = shownPath(current.value).findLast(({ message }) => message.role === "user");
  return reference && handoverLink({ reference, question: question?.message.text ?? "" });
}

/** `text` as a QR code; the encoder is loaded when the first one is shown. */
function QrCode({ text }: { readonly text: string }): VNode {
  const code = useSignal<{ size: number; path: string } | null>(null);
  useEffect(() => {
    void import("uqr").then(({ encode }) => {
      const { data, size } = encode(text, { ecc: "L", border: 1 });
      const dark = data.flatMap((row, y) => row.flatMap((isDark, x) => (isDark ? [`M${x} ${y}h1v1h-1z`] : [])));
      code.value = { size, path: dark.join("") };
    });
  }, [text]);
  return (
    <svg class="qr" viewBox={`0 0 ${code.value?.size ?? 1} ${code.value?.size ?? 1}`} role="img" aria-label="QR code of the link" shape-rendering="crispEdges">
      <path d={code.value?.path ?? ""} />
    </svg>
  );
}
