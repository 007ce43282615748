// How to use the server from other programs, and how to serve another model: lines to copy.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { CopyButton } from "../shell/controls.js";
import { Dialog } from "../shell/dialog.js";
import { closeDialogue, dialogue } from "./layout.js";
import { chosenModel } from "./server.js";
import { settings } from "./settings.js";

type Language = "curl" | "Python" | "JavaScript";

const LANGUAGES: readonly Language[] = ["curl", "Python", "JavaScript"];

export function ConnectDialog(): VNode {
  const isConnect = dialogue.value === "connect";
  return (
    <Dialog title={isConnect ? "Connect an app" : "Use your own model"} onClose={closeDialogue}>
      {isConnect ? <Connect /> : <OwnModel />}
    </Dialog>
  );
}

function baseUrl(): string {
  return new URL("v1", document.baseURI).href;
}

function Connect(): VNode {
  const language = useSignal<Language>("curl");
  return (
    <>
      <p>Any program that speaks OpenAI’s API can use this server. Give it this base URL:</p>
      <Snippet text={baseUrl()} />
      <p class="faint">
        {settings.value.apiKey === "" ? "Without a key on the server, any text will do as the API key." : "Use the API key of this server."}{" "}
        Anthropic’s API is under the same address without <code>/v1</code>.
      </p>
      <div class="tabs" role="group" aria-label="Language">
        {LANGUAGES.map((one) => (
          <button key={one} type="button" aria-pressed={one === language.value} onClick={() => (language.value = one)}>
            {one}
          </button>
        ))}
      </div>
      <Snippet text={example(language.value)} />
    </>
  );
}

function OwnModel(): VNode {
  return (
    <>
      <p>Stop the server, and start it with a model in the GGUF format. From Hugging Face:</p>
      <Snippet text="loquent serve --hf Qwen/Qwen3-0.6B-GGUF" />
      <p>From a file:</p>
      <Snippet text="loquent serve --model path/to/model.gguf" />
      <p>In front of a server that you have already, such as vLLM, llama-server or Ollama:</p>
      <Snippet text="loquent serve --upstream http://localhost:11434" />
    </>
  );
}

/** Lines to copy. */
function Snippet({ text }: { readonly text: string }): VNode {
  return (
    <div class="snippet">
      <pre tabIndex={0}>{text}</pre>
      <CopyButton text={() => text} />
    </div>
  );
}

function example(language: Language): string {
  const [url, model] = [baseUrl(), chosenModel()?.id ?? "default"];
  const hasKey = settings.value.apiKey !== "";
  switch (language) {
    case "curl":
      return curlExample(url, model, hasKey);
    case "Python":
      return pythonExample(url, model, hasKey);
    case "JavaScript":
      return javaScriptExample(url, model, hasKey);
  }
}

function curlExample(url: string, model: string, hasKey: boolean): string {
  const body = JSON.stringify({ model, stream: true, messages: [{ role: "user", content: "Hello!" }] });
  const key = hasKey ? ' -H "authorization: Bearer $LOQUENT_API_KEY"' : "";
  return `curl -N ${url}/chat/completions${key} \\\n  -H "content-type: application/json" \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
}

function pythonExample(url: string, model: string, hasKey: boolean): string {
  return `from openai import OpenAI

client = OpenAI(base_url="${url}", api_key=${hasKey ? 'os.environ["LOQUENT_API_KEY"]' : '"none"'})
stream = client.chat.completions.create(
    model=${JSON.stringify(model)},
    messages=[{"role": "user", "content": "Hello!"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`.replace(/^/, hasKey ? "import os\n" : "");
}

function javaScriptExample(url: string, model: string, hasKey: boolean): string {
  const key = hasKey ? "\n  apiKey: process.env.LOQUENT_API_KEY," : "";
  return `import { streamChat } from "@loquent/client";

const answer = streamChat({
  url: "${url}/chat/completions",${key}
  body: { model: ${JSON.stringify(model)}, messages: [{ role: "user", content: "Hello!" }] },
});
for await (const delta of answer) {
  if (delta.kind === "text") process.stdout.write(delta.text);
}`;
}
