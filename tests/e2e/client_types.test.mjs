// @loquent/client takes and gives what OpenAI's own types describe.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const CLIENT = new URL("../../web/client/", import.meta.url);
const ts = createRequire(new URL("package.json", CLIENT))("typescript");

const SOURCE = `
  import type OpenAI from "openai";
  import { type ChatChunk, streamChat } from "${fileURLToPath(new URL("dist/index.js", CLIENT))}";
  type Chat = OpenAI.Chat.Completions.ChatCompletionCreateParamsStreaming;
  type Text = OpenAI.Completions.CompletionCreateParamsStreaming;
  interface Mine extends Chat {
    user: string;
  }
  export const asked = (url: string, body: Chat) => streamChat({ url, body });
  export const mine = (url: string, body: Mine) => streamChat({ url, body });
  export const completed = (url: string, body: Text) => streamChat({ url, body });
  export const given = (chunk: ChatChunk): OpenAI.Chat.Completions.ChatCompletionChunk => chunk;
`;

test("OpenAI's parameters can be asked, and chunks are OpenAI's", () => {
  const folder = mkdtempSync(fileURLToPath(new URL("./types-", import.meta.url)));
  try {
    const file = join(folder, "openai.mts");
    writeFileSync(file, SOURCE);
    const { ScriptTarget, ModuleKind, ModuleResolutionKind } = ts;
    const options = { target: ScriptTarget.ES2022, module: ModuleKind.NodeNext, moduleResolution: ModuleResolutionKind.NodeNext };
    const program = ts.createProgram([file], { ...options, strict: true, skipLibCheck: true, noEmit: true, types: [] });
    const errors = ts.getPreEmitDiagnostics(program).map((one) => ts.flattenDiagnosticMessageText(one.messageText, "\n"));
    assert.deepEqual(errors, []);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
