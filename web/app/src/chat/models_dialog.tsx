// The server's models: which are loaded, and how to get others.

import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { Dialog } from "../shell/dialog.js";
import { downloads, lookAtDownloads } from "./download.js";
import { DownloadForm } from "./download_form.js";
import { closeDialogue } from "./layout.js";
import { askFor, presenceText, wish, wishFor } from "./presence.js";
import { DEMONSTRATION_MODEL, type ModelCard, isDemonstration, lookSoon, server } from "./server.js";
import { Snippet } from "./snippet.js";

export function ModelsDialog(): VNode {
  const models = server.value.is === "ready" ? server.value.models : [];
  useEffect(() => {
    // A refusal may have been of another key.
    wish.value = { is: "none" };
    lookSoon();
    void lookAtDownloads();
  }, []);
  return (
    <Dialog title="Models" onClose={closeDialogue}>
      {models.length > 0 && (
        <ul class="models" aria-label="Models of this server">
          {models.map((model) => (
            <Model key={model.id} model={model} />
          ))}
        </ul>
      )}
      <p class="refusal" role="status">
        {wish.value.is === "refused" && wish.value.why}
      </p>
      <DownloadForm />
      <OtherModels />
    </Dialog>
  );
}

function Model({ model }: { readonly model: ModelCard }): VNode {
  const { id, presence, loadedShare } = model;
  const what = wishFor(model);
  const isBarred = wish.value.is === "asking" || (wish.value.is === "refused" && wish.value.isForAll);
  return (
    <li>
      <span class="name">{id}</span>
      <span class="faint">{presenceText(model)}</span>
      {presence === "loading" && <progress aria-label={`${id}: loaded part`} max={1} {...(loadedShare !== null && { value: loadedShare })} />}
      {what !== null && (
        <button type="button" disabled={isBarred} aria-label={`${what === "load" ? "Load" : "Unload"} ${id}`} onClick={() => void askFor(what, id)}>
          {what === "load" ? "Load" : "Unload"}
        </button>
      )}
    </li>
  );
}

function OtherModels(): VNode {
  return (
    <>
      <p>
        {isDemonstration() && `${DEMONSTRATION_MODEL} only knows about streaming. `}
        {downloads.value.is === "offered"
          ? "The server’s next start serves the models that were downloaded here, too. To start it with one of them alone, run this on the server’s machine:"
          : "To serve a model that answers questions of every kind, run this on the server’s machine. It downloads the model from Hugging Face once, and goes on where a download was broken off:"}
      </p>
      <Snippet text="loquent serve qwen3:0.6b" />
      <p>For the models in a folder, which can then be loaded and unloaded here:</p>
      <Snippet text="loquent serve --models-dir path/to/folder" />
      <p>In front of a server that you have already, such as vLLM, llama-server or Ollama:</p>
      <Snippet text="loquent serve --upstream http://localhost:11434" />
      <p class="faint">
        <a href="docs/models">Names of models, and where they are kept</a>
      </p>
    </>
  );
}
