// The declarations, as apps' compilers see them: strict, with libraries checked, without the DOM's.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import ts from "typescript";

// Inside the package, whose name means itself there.
const folder = mkdtempSync(fileURLToPath(new URL("./types-", import.meta.url)));
after(() => rmSync(folder, { recursive: true }));

const STRICT = {
  target: ts.ScriptTarget.ES2022,
  lib: ["lib.es2022.d.ts"],
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  skipLibCheck: false,
  noEmit: true,
  types: [],
};
const DOM = { lib: ["lib.es2022.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts", "lib.dom.asynciterable.d.ts"] };

let files = 0;
/** What the compiler says of `source`. */
function errorsOf(source, more = {}) {
  const file = join(folder, `case${files++}.mts`);
  writeFileSync(file, source);
  const program = ts.createProgram([file], { ...STRICT, ...more });
  return ts.getPreEmitDiagnostics(program).map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n"));
}

test("an app without the DOM library, with checked libraries, compiles", () => {
  const source = `
    import { type Answer, type ChatMessage, LoquentError, resumeChat, streamChat } from "@loquent/client";
    import { answerStore } from "@loquent/client/svelte";
    import { Receiver } from "@loquent/client/protocol";
    export async function ask(messages: ChatMessage[], max_tokens: number | undefined, kept: Map<string, string>) {
      const storage = {
        getItem: (key: string) => kept.get(key) ?? null,
        setItem: (key: string, value: string) => void kept.set(key, value),
        removeItem: (key: string) => void kept.delete(key),
      };
      const options = { remember: "a", storage, signal: undefined };
      const url = "http://127.0.0.1:8080/v1/chat/completions";
      const answer: Answer = resumeChat(options) ?? streamChat({ ...options, url, body: { messages, max_tokens } });
      for await (const delta of answer) if (delta.kind === "text") delta.text.trim();
      const again = answer.reference && resumeChat({ url, reference: answer.reference, offset: answer.offset ?? 0 });
      const failed = (error: unknown) => error instanceof LoquentError && error.kind === "broken" && error.cause;
      return [await again?.finalText(), failed, answerStore({ url }), Receiver];
    }
  `;
  assert.deepEqual(errorsOf(source), []);
});

test("the platform's own classes fit", () => {
  const source = `
    import { streamChat, resumeChat } from "@loquent/client";
    const stop = new AbortController();
    const url = new URL("http://127.0.0.1:8080/v1/chat/completions");
    const body = { messages: [{ role: "user" as const, content: "hi" }] };
    export const answer = streamChat({ url, body, fetch, signal: stop.signal, storage: localStorage });
    export const other = streamChat({ url, body, fetch: (address, init) => fetch(address, { ...init, mode: "cors" }) });
    export const kept = resumeChat({ remember: "a", storage: sessionStorage });
  `;
  assert.deepEqual(errorsOf(source, DOM), []);
});

test("misspelt parameters, wrong types and answers written to from outside are refused", () => {
  const ask = (body) => `
    import { streamChat } from "@loquent/client";
    export const answer = streamChat({ url: "http://x/v1/chat/completions", body: ${body} });
  `;
  const right = '{ messages: [{ role: "user", content: "hi" }] }';
  assert.deepEqual(errorsOf(ask(right)), []);
  for (const [body, told] of [
    ['{ mesages: [{ role: "user", content: "hi" }] }', /mesages|messages/],
    ['{ messages: [{ role: "user", content: "hi" }], temprature: 0 }', /temprature/],
    ['{ messages: [{ role: "usr", content: "hi" }] }', /usr/],
    ['{ messages: [{ role: "user", contnt: "hi" }] }', /contnt/],
    ['{ messages: [], max_tokens: "many" }', /string/],
  ]) {
    const errors = errorsOf(ask(body));
    assert.ok(errors.length > 0 && told.test(errors.join()), `${body}: ${errors}`);
  }
  const chunks = `${ask(right)} for await (const chunk of answer.chunks()) chunk.choices[0]?.delta.content?.trim();`;
  assert.deepEqual(errorsOf(chunks), []);
  assert.match(errorsOf(`${ask(right)} answer.text = "mine";`).join(), /read-only/);
  assert.match(errorsOf(`${ask(right)} answer.options;`).join(), /options/);
  assert.deepEqual(errorsOf(`${ask('{ prompt: "Once" }')} for await (const { choices } of answer.chunks()) choices[0]?.text.trim();`), []);
});
