// Starts the real binary for tests in Node.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";

/** A process of the binary, whose log can be read. It ends with the tests, however they end. */
export function run(args, environment = {}) {
  const child = spawn(process.env.LOQUENT_BIN, args, { env: { ...process.env, ...environment }, stdio: ["ignore", "ignore", "pipe"] });
  process.on("exit", () => child.kill());
  return child;
}

/** What the first group of `pattern` finds in the log of `child`; fails with the log if it ends before. */
export function announced(child, pattern) {
  return new Promise((resolve, reject) => {
    let log = "";
    child.stderr.on("data", function look(data) {
      log += data;
      // Of whole lines alone: a line comes in pieces, and half an address is another one.
      const found = pattern.exec(log.slice(0, log.lastIndexOf("\n") + 1));
      if (!found) return;
      // What it says later is nobody's, and must not undo the `ref()` of one who waits for its end.
      child.stderr.off("data", look).resume();
      // A server that nobody ended must not keep the tests from ending: it ends with them.
      child.unref();
      child.stderr.unref();
      resolve(found[1]);
    });
    child.on("exit", () => reject(new Error(log)));
  });
}

/** A server on a free port, and its URL; the model may still be loading. */
export async function serve(...args) {
  const server = run(["serve", "--port", "0", ...args]);
  return { server, url: await announced(server, /on (http:\/\/\S+)/) };
}

/** Waits until the server at `url` takes requests, for clients that do not ask again. */
export async function ready(url) {
  for (let tries = 0; !(await fetch(`${url}/ready`)).ok; tries++) {
    assert.ok(tries < 1000, "never ready");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
