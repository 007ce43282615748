// The form that downloads a model to the server's machine, and where the latest download stands.

import type { VNode } from "preact";
import { type Download, download, downloads, downloadText, stopDownload } from "./download.js";

/** A model that answers questions of every kind, and is small. */
const SUGGESTED = "qwen3:0.6b";

export function DownloadForm(): VNode | null {
  if (downloads.value.is === "none") return null;
  const { latest, refusal } = downloads.value;
  const isBusy = latest?.status === "downloading";
  return (
    <form
      class="download"
      onSubmit={(event) => {
        event.preventDefault();
        const model = new FormData(event.currentTarget).get("model");
        void download(typeof model === "string" && model.trim() !== "" ? model.trim() : SUGGESTED);
      }}
    >
      <label for="download-model">Download a model from Hugging Face</label>
      <input id="download-model" name="model" placeholder={SUGGESTED} disabled={isBusy} autocomplete="off" spellcheck={false} />
      <button type="submit" disabled={isBusy}>
        Download
      </button>
      {latest !== null && <Progress latest={latest} />}
      <p class="refusal" role="status">
        {refusal}
      </p>
    </form>
  );
}

function Progress({ latest }: { readonly latest: Download }): VNode {
  const { id, asked, status, doneBytes, totalBytes } = latest;
  if (status !== "downloading") return <p class={status === "failed" ? "refusal" : "faint"}>{downloadText(latest)}</p>;
  return (
    <div class="running">
      <span class="faint">
        {asked}: {downloadText(latest)}
      </span>
      <progress aria-label={`Downloaded part of ${asked}`} max={1} {...(totalBytes > 0 && { value: doneBytes / totalBytes })} />
      <button type="button" onClick={() => void stopDownload(id)}>
        Stop
      </button>
    </div>
  );
}
