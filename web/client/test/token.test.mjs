// Tokens are asked for once for all who wait, and again before they end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { cachedToken } from "../dist/index.js";

test("a token is shared until it is about to end", async (context) => {
  context.mock.timers.enable({ apis: ["Date"] });
  let made = 0;
  const apiKey = cachedToken(async () => ({ token: `t${++made}`, expires_in: 600 }));
  assert.deepEqual(await Promise.all([apiKey(), apiKey()]), ["t1", "t1"]);
  context.mock.timers.tick(569_000);
  assert.equal(await apiKey(), "t1");
  context.mock.timers.tick(2_000);
  assert.deepEqual(await Promise.all([apiKey(), apiKey()]), ["t2", "t2"]);
});

test("a failure is not kept", async () => {
  let tries = 0;
  const apiKey = cachedToken(async () => {
    if (++tries === 1) throw new Error("not signed in");
    return { token: "t", expires_in: 1 };
  });
  await assert.rejects(apiKey(), /not signed in/);
  assert.equal(await apiKey(), "t");
});
