// Languages of code blocks: what models call them, and what the page calls them.

/** A language that is known by name. */
export interface Language {
  /** highlight.js's name of it, where colours are wanted. */
  readonly id: string | null;
  /** What the page calls it. */
  readonly name: string;
}

/** highlight.js's name, the page's, and further names that models use. */
const TABLE: readonly (readonly [id: string, name: string, ...aliases: string[]])[] = [
  ["bash", "Bash", "sh", "shell", "zsh", "console", "shell-session"],
  ["c", "C", "h"],
  ["cpp", "C++", "c++", "cc", "hpp", "cxx"],
  ["csharp", "C#", "cs", "c#"],
  ["css", "CSS"],
  ["diff", "Diff", "patch"],
  ["dockerfile", "Dockerfile", "docker"],
  ["elixir", "Elixir", "ex", "exs"],
  ["go", "Go", "golang"],
  ["graphql", "GraphQL", "gql"],
  ["haskell", "Haskell", "hs"],
  ["ini", "TOML", "toml", "cfg"],
  ["java", "Java"],
  ["javascript", "JavaScript", "js", "jsx", "mjs", "cjs", "node"],
  ["json", "JSON", "jsonc", "json5", "jsonl"],
  ["julia", "Julia", "jl"],
  ["kotlin", "Kotlin", "kt"],
  ["latex", "LaTeX", "tex"],
  ["lua", "Lua"],
  ["makefile", "Makefile", "make", "mk"],
  ["markdown", "Markdown", "md"],
  ["nginx", "nginx"],
  ["perl", "Perl", "pl"],
  ["php", "PHP"],
  ["powershell", "PowerShell", "ps1", "pwsh"],
  ["python", "Python", "py", "python3", "ipython"],
  ["r", "R"],
  ["ruby", "Ruby", "rb"],
  ["rust", "Rust", "rs"],
  ["scala", "Scala"],
  ["scss", "SCSS", "sass"],
  ["sql", "SQL", "postgresql", "mysql", "sqlite"],
  ["swift", "Swift"],
  ["typescript", "TypeScript", "ts", "tsx", "mts"],
  ["wasm", "WebAssembly", "wat"],
  ["xml", "HTML", "html", "svg", "xhtml", "vue"],
  ["yaml", "YAML", "yml"],
];

/** Nothing to colour. */
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "none", "output"]);

const byName = new Map<string, Language>();
for (const [id, name, ...aliases] of TABLE) {
  for (const alias of [id, ...aliases]) byName.set(alias, { id, name });
}

/** The language that a model calls `name`; `null` if it is not known. */
export function languageOf(name: string): Language | null {
  const small = name.toLowerCase();
  return PLAIN.has(small) ? { id: null, name: "Text" } : (byName.get(small) ?? null);
}
