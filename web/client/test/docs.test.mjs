// The reference names every export of the package's entries for apps.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import ts from "typescript";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const reference = read("../../../docs/client.md");

/** The names that the module at `path` exports, types included. */
function exportsOf(path) {
  const source = ts.createSourceFile(path, read(path), ts.ScriptTarget.ES2022, true);
  return source.statements.flatMap((statement) => {
    if (ts.isExportDeclaration(statement)) return statement.exportClause.elements.map(({ name }) => name.text);
    const isExported = statement.modifiers?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword);
    return isExported ? [statement.name.text] : [];
  });
}

for (const entry of ["index", "ai", "react", "vue", "svelte"]) {
  test(`docs/client.md names what ${entry} exports`, () => {
    const names = exportsOf(`../src/${entry}.ts`);
    assert.ok(names.length > 2);
    const missing = names.filter((name) => !new RegExp(`\\b${name}s?\\b`).test(reference));
    assert.deepEqual(missing, []);
  });
}
