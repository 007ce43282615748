// How to use the server from other programs: lines to copy.

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { Dialog } from "../shell/dialog.js";
import { closeDialogue } from "./layout.js";
import { chosenModel } from "./server.js";
import { settings } from "./settings.js";
import { Snippet } from "./snippet.js";

type Language = "curl" | "Python" | "JavaScript";

const LANGUAGES: readonly Language[] = ["curl", "Python", "JavaScript"];

export function ConnectDialog(): VNode {
  const language = useSignal<Language>("curl");
  return (
    <Dialog title="Connect an app" onClose={closeDialogue}>
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
    </Dialog>
  );
}

function baseUrl(): string {
  return new URL("v1", document.baseURI).href;
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
