// What the conformance tests of Durable Streams import from vitest, on Node's own test runner:
// vitest's assertions, and tests without those that are skipped by name, with reasons.
import { readFileSync } from "node:fs";
import { describe as suite, test as run } from "node:test";
import { JestAsymmetricMatchers, JestChaiExpect, JestExtend } from "@vitest/expect";
import * as chai from "chai";

const TIME_LIMIT_MS = 30_000;

const skipped = JSON.parse(readFileSync(new URL("durable_skipped.json", import.meta.url)));
const names = new RegExp(skipped.map(({ name }) => name).join("|"));

for (const plugin of [JestExtend, JestChaiExpect, JestAsymmetricMatchers]) chai.use(plugin);
export const expect = Object.assign((...actual) => chai.expect(...actual), chai.expect);

export const describe = Object.assign(
    (name, body) => (names.test(name) ? suite.skip(name) : suite(name, body)),
    { runIf: (holds) => (holds ? describe : suite.skip) },
);

/** `test(name, body, timeout)`, or with options in the second place. */
export function test(name, ...rest) {
    const body = rest.find((argument) => typeof argument === "function");
    return run(name, { timeout: TIME_LIMIT_MS, skip: names.test(name) }, () => body());
}

/** Only tests of what Loquent does not have use it. */
export const vi = {};
