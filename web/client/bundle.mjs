// Joins the package's modules into the two files that the server's page loads:
// `node bundle.mjs [FOLDER]`, by default `web/page`. One request each, whatever the round
// trip; and whoever builds the server needs no node.
//
// It understands what the sources use: relative imports of names, exports at declarations,
// and re-exports in the entry. Anything else is an error, never a wrong bundle.

import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const HERE = dirname(fileURLToPath(import.meta.url));
const HEADER = "// Built from web/client by `npm run build`; change it there.\n";

/** All statements that `entry` needs, dependencies first, and the names it exports. */
class Bundle {
  statements = [];
  exported = new Set();
  #loaded = new Set();
  #owners = new Map();

  load(file, isEntry) {
    if (this.#loaded.has(file)) return;
    this.#loaded.add(file);
    const source = ts.createSourceFile(file, readFileSync(file, "utf8"), ts.ScriptTarget.ES2022, true, ts.ScriptKind.JS);
    source.statements.forEach((statement) => this.#add(file, source, statement, isEntry));
  }

  #add(file, source, statement, isEntry) {
    if (ts.isImportDeclaration(statement) || (ts.isExportDeclaration(statement) && statement.moduleSpecifier)) {
      this.#follow(file, statement, isEntry);
    } else if (ts.isExportAssignment(statement)) {
      throw new Error(`${file}: default exports are not joined`);
    } else if (!ts.isExportDeclaration(statement) || statement.exportClause.elements.length > 0) {
      this.#keep(file, source, statement, isEntry);
    }
  }

  #follow(file, statement, isEntry) {
    const names = ts.isImportDeclaration(statement) ? statement.importClause?.namedBindings : statement.exportClause;
    const target = statement.moduleSpecifier.text;
    const plain = names?.elements?.every((element) => !element.propertyName);
    if (!plain || !target.startsWith("./")) throw new Error(`${file}: cannot join '${statement.getText()}'`);
    this.load(resolve(dirname(file), target), false);
    if (isEntry && ts.isExportDeclaration(statement)) names.elements.forEach(({ name }) => this.exported.add(name.text));
  }

  #keep(file, source, statement, isEntry) {
    const modifier = statement.modifiers?.find(({ kind }) => kind === ts.SyntaxKind.ExportKeyword);
    for (const name of declaredNames(statement)) {
      if (this.#owners.has(name)) throw new Error(`'${name}' is declared in ${this.#owners.get(name)} and ${file}`);
      this.#owners.set(name, file);
      if (isEntry && modifier) this.exported.add(name);
    }
    this.statements.push(source.text.slice(modifier ? modifier.end : statement.getStart(), statement.end).trim());
  }
}

function declaredNames(statement) {
  if (!ts.isVariableStatement(statement)) return statement.name ? [statement.name.text] : [];
  return statement.declarationList.declarations.map(({ name }) => name.getText());
}

/** One module out of `entry` and everything that it imports. */
function bundled(entry) {
  const bundle = new Bundle();
  bundle.load(join(HERE, "dist", entry), true);
  const exports = bundle.exported.size > 0 ? `export { ${[...bundle.exported].sort().join(", ")} };` : "export {};";
  const joined = [...bundle.statements, exports].join("\n");
  const options = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022, removeComments: true };
  return HEADER + ts.transpileModule(joined, { compilerOptions: options }).outputText;
}

const folder = resolve(process.argv[2] ?? join(HERE, "../page"));
writeFileSync(join(folder, "loquent-client.js"), bundled("index.js"));
writeFileSync(join(folder, "loquent-worker.js"), bundled("loquent-worker.js"));
