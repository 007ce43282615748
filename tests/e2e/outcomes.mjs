// A reporter for `node --test` that tells what became of each test, a line of JSON each
// (tools/suites.py). A suite is no test, and neither is a test that failed only because a part of it did.

const RUN_OUT_OF_TIME = ["testTimeoutFailure", "cancelledByParent", "testAborted"];

function outcome(type, data) {
  const { name, file, skip, todo, details } = data;
  const error = details?.error;
  const failureType = error?.failureType;
  if (details?.type === "suite" && failureType !== "hookFailed") return null;
  if (failureType === "subtestsFailed") return null;
  const told = { file: file ?? name, name, result: "passed", why: "", final: false };
  if (type === "test:fail" && todo === undefined) {
    const cause = error?.cause ?? error;
    const signal = error?.signal ?? cause?.signal;
    const why = `${failureType}: ${cause?.message ?? cause}`;
    const final = RUN_OUT_OF_TIME.includes(failureType) || Boolean(signal);
    return { ...told, result: "failed", why: signal ? `${why} (${signal})` : why, final };
  }
  if (skip !== undefined) return { ...told, result: "skipped", why: String(skip) };
  return told;
}

export default async function* outcomes(source) {
  for await (const { type, data } of source) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    const told = outcome(type, data);
    if (told) yield `${JSON.stringify(told)}\n`;
  }
}
