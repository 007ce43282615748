// Opening a session.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Connection } from "../dist/connection.js";
import { FakeServer } from "./support.mjs";

const target = { urls: ["https://one.test/", "https://other.test/"], certificate_sha256: "00".repeat(32) };

test("a session that does not open is given up, so that the next attempt is a new one", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const peer = new FakeServer({ mute: true });
  // A browser that never says how it went.
  const Mute = class extends peer.WebTransport {
    ready = new Promise(() => {});
  };
  const opening = Connection.open(target, Mute, () => 0);
  context.mock.timers.tick(15_000);
  await assert.rejects(opening, { message: "no session opens" });
  assert.deepEqual(peer.sessions.map(({ isOver }) => isOver), [true, true]);
});

test("of two sessions the one that opens is taken, and the other one is closed", async () => {
  const peer = new FakeServer({});
  const Peer = class extends peer.WebTransport {
    constructor(url, options) {
      super(url, options);
      if (url === target.urls[0]) this.ready = new Promise(() => {});
    }
  };
  const connection = await Connection.open(target, Peer, () => 0);
  assert.deepEqual(peer.sessions.map(({ isOver }) => isOver), [true, false]);
  connection.close();
});
