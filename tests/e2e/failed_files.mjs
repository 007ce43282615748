// A reporter for `node --test` that lists the files with failed tests, a line each (tools/e2e).

export default async function* failedFiles(source) {
  const files = new Set();
  for await (const { type, data } of source) {
    if (type === "test:fail") files.add(data.file);
  }
  for (const file of files) yield `${file}\n`;
}
