// How vitest runs the conformance tests: without those that are skipped by name, with reasons.
import { readFileSync } from "node:fs";
import { defineConfig } from "vitest/config";

const skipped = JSON.parse(readFileSync(new URL("durable_skipped.json", import.meta.url)));
const names = skipped.map(({ name }) => name).join("|");

export default defineConfig({
    test: {
        include: ["durable_conformance.mjs"],
        testTimeout: 30_000,
        testNamePattern: new RegExp(`^(?!.*(?:${names}))`),
    },
});
