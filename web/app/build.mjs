// Builds the pages: `node build.mjs [FOLDER]`, by default `../page`, which the server embeds.
// Everything but the HTML and the icon goes to `assets/` under a name that holds a hash of its
// contents. The same sources and lock file give the same bytes.

import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const CLIENT = join(HERE, "../client/src");

/** The pages: their HTML files, entry modules, titles and descriptions. */
const PAGES = [
  { name: "index", entry: "src/chat/main.tsx", title: "Loquent", about: "Chat with the model that this server runs" },
  { name: "lab", entry: "src/lab/main.tsx", title: "Laboratory · Loquent", about: "How an answer crosses a bad network, side by side" },
  { name: "dashboard", entry: "src/dashboard/main.tsx", title: "Dashboard · Loquent", about: "What this server is doing" },
];

const SHARED = {
  absWorkingDir: HERE,
  bundle: true,
  minify: true,
  charset: "utf8",
  target: "es2022",
  format: "esm",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
  write: false,
};

/** Builds `entryPoints` into files under `assets/`; returns esbuild's result. */
function assets(entryPoints, options = {}) {
  const names = { entryNames: "assets/[name]-[hash]", chunkNames: "assets/[name]-[hash]", assetNames: "assets/[name]-[hash]" };
  return esbuild.build({ ...SHARED, entryPoints, outdir: HERE, ...names, ...options });
}

/** The workers: their entry modules, and the modules that name them by the file that they would be unbundled. */
const WORKERS = [
  { entry: join(CLIENT, "loquent-worker.ts"), plain: "./loquent-worker.js", namedIn: /worker_link\.ts$/ },
  { entry: "src/message/markdown/highlight_worker.ts", plain: "./highlight-worker.js", namedIn: /markdown\/highlight\.ts$/ },
  { entry: "src/chat/pdf_worker.ts", plain: "./pdf-worker.js", namedIn: /chat\/pdf\.ts$/ },
];

/** Builds a worker; its result, and the plugin that gives it the name that it has here. */
async function worker({ entry, plain, namedIn }) {
  const result = await assets([entry], { splitting: true });
  const [path] = Object.entries(result.metafile.outputs).find(([, { entryPoint }]) => entryPoint && resolve(HERE, entryPoint) === resolve(HERE, entry));
  return { result, plugin: workerName(plain, namedIn, basename(path)) };
}

function workerName(plain, namedIn, name) {
  return {
    name: `name of ${plain}`,
    setup(build) {
      build.onLoad({ filter: namedIn }, ({ path }) => {
        const source = readFileSync(path, "utf8");
        if (!source.includes(JSON.stringify(plain))) throw new Error(`${path}: no ${plain}`);
        return { contents: source.replace(JSON.stringify(plain), JSON.stringify(`./${name}`)), loader: "ts" };
      });
    },
  };
}

/** Style sheets that are imported as text: minified, as the linked ones are. */
const textStyles = {
  name: "styles as text",
  setup(build) {
    build.onLoad({ filter: /\.css$/ }, async ({ path, with: { type } }) => {
      if (type !== "text") return null;
      const { code } = await esbuild.transform(readFileSync(path, "utf8"), { loader: "css", minify: true, charset: "utf8" });
      return { contents: code, loader: "text" };
    });
  },
};

/** The path of the only output of `result`, relative to the pages' folder. */
function onlyOutput(result) {
  return relative(HERE, result.outputFiles[0].path);
}

/** What the page whose entry module is `entry` loads at once: its script, styles and shared chunks. */
function firstLoad(metafile, entry) {
  const [script, output] = Object.entries(metafile.outputs).find(([, { entryPoint }]) => entryPoint === entry);
  const scripts = new Set([script]);
  for (const path of scripts) {
    const imports = metafile.outputs[path].imports.filter(({ kind, external }) => kind === "import-statement" && !external);
    imports.forEach((one) => scripts.add(one.path));
  }
  return { script, style: output.cssBundle, chunks: [...scripts].filter((path) => path !== script) };
}

function html(page, { script, style, chunks }, theme) {
  const head = [
    `<script src="${theme}"></script>`,
    ...(style ? [`<link rel="stylesheet" href="${style}" />`] : []),
    ...chunks.map((path) => `<link rel="modulepreload" href="${path}" />`),
    `<script type="module" src="${script}"></script>`,
  ];
  return readFileSync(join(HERE, "src/shell/page.html"), "utf8")
    .replace("{{title}}", page.title)
    .replace("{{about}}", page.about)
    .replace("{{head}}", head.join("\n    "));
}

/** The licences of everything that is bundled, as their texts demand. */
function licences(metafiles) {
  const inputs = metafiles.flatMap(({ inputs }) => Object.keys(inputs));
  const packages = new Set(inputs.flatMap((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []));
  return [...packages].sort().map(licence).join("\n");
}

const APACHE = readFileSync(join(CLIENT, "../LICENSE-APACHE"), "utf8");

function licence(name) {
  const folder = join(HERE, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((file) => /^licen[cs]e/i.test(file));
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : `Licence: ${license}`;
  const within = name === "unpdf" ? `\nunpdf holds PDF.js (Apache-2.0)\n\n${APACHE}` : "";
  return `${name} ${version} (${license})\n\n${text}\n${within}`;
}

function write(folder, path, contents) {
  mkdirSync(dirname(join(folder, path)), { recursive: true });
  writeFileSync(join(folder, path), contents);
}

const folder = resolve(process.argv[2] ?? join(HERE, "../page"));
const workers = await Promise.all(WORKERS.map(worker));
const theme = await assets(["src/shell/theme_boot.ts"], { format: "iife" });
const alias = { "@loquent/client": join(CLIENT, "index.ts") };
const pages = await assets(
  PAGES.map(({ name, entry }) => ({ in: entry, out: name })),
  { splitting: true, jsx: "automatic", jsxImportSource: "preact", alias, plugins: [...workers.map(({ plugin }) => plugin), textStyles] },
);
if (existsSync(join(folder, "assets"))) rmSync(join(folder, "assets"), { recursive: true });
const results = [...workers.map(({ result }) => result), theme, pages];
for (const { outputFiles } of results) {
  for (const { path, contents } of outputFiles) write(folder, relative(HERE, path), contents);
}
for (const page of PAGES) write(folder, `${page.name}.html`, html(page, firstLoad(pages.metafile, page.entry), onlyOutput(theme)));
write(folder, "licenses.txt", licences(results.map(({ metafile }) => metafile)));
copyFileSync(join(HERE, "src/shell/favicon.svg"), join(folder, "favicon.svg"));
