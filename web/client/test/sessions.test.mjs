// spec/vectors/sessions.json: seeded sessions, step by step as the Rust receiver played them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Receiver, WITH_ANOTHER_PATH, crc32c, encodeFrame, encodeRecord, encodeUtf8 } from "../dist/protocol.js";

const { cases } = JSON.parse(readFileSync(new URL("../../../spec/vectors/sessions.json", import.meta.url)));
const PIECES = ["", " by", " token", " 语言", " naïve", " 🦀"];
const hex = (data) => Buffer.from(data).toString("hex");

/** The log of a session, by the same rule as in `crates/proto/tests/seeded_sessions.rs`. */
function logOf([texts, ending]) {
  const deltas = [{ kind: "open", meta: "{}" }];
  for (let i = 0; i < texts; i++) {
    deltas.push({ kind: "text", choice: 0, tokens: i % 7 === 3 ? 3 : 1, text: `${PIECES[i % PIECES.length]}${i}` });
  }
  if (ending === "done") deltas.push({ kind: "finish", choice: 0, reason: "stop" }, { kind: "done" });
  if (ending === "error") deltas.push({ kind: "error", code: "engine", message: "stopped" });
  const bytes = deltas.map(encodeRecord);
  if (ending === "unreadable") bytes.push(Uint8Array.of(0x82, 0xff, 0xfe));
  return Buffer.concat(bytes);
}

const playoutOf = ([buffer_us, rate]) => ({ buffer_us, max_tokens_per_s: rate === 0 ? null : rate });

function eventText(event) {
  if (event.event === "delta") return `;${event.offset}=${hex(encodeRecord(event.delta))}`;
  return event.event === "failed" ? `;failed ${event.error ?? ""}` : `;${event.event}`;
}

/** Plays a session; each step returns everything that a driver sees. */
class Session {
  #now = 0;
  #steps = 0;

  constructor({ log, playout, limits: [maxBytes, maxRanges], take, client }) {
    this.log = logOf(log);
    this.take = take === 0 ? Infinity : take;
    this.config = { playout: playoutOf(playout), limits: { maxBytes, maxRanges }, ...(client && WITH_ANOTHER_PATH) };
    this.receiver = new Receiver(0, 1, 0, this.config);
  }

  step(passed, action, args) {
    this.#now += passed;
    let text = this.#apply(this.#now, action, args) ?? "";
    this.receiver.handleTimeout(this.#now);
    const take = this.#steps++ % 20 === 19 ? Infinity : this.take;
    for (let taken = 0; taken < take; taken++) {
      const event = this.receiver.pollEvent();
      if (event === null) break;
      text += eventText(event);
    }
    for (let sent; (sent = this.receiver.pollTransmit(this.#now)); ) text += `|${hex(sent)}`;
    const { cumulative, shown, closed } = this.receiver;
    return `${text}|${cumulative} ${shown} ${this.receiver.pollTimeout() ?? "-"} ${closed ? 1 : 0}`;
  }

  #apply(now, action, args) {
    const { receiver } = this;
    const [channel, packet, offset, length] = args.map(Number);
    if (action === "d") {
      const bytes = this.log.subarray(offset, offset + length);
      return receiver.handleDatagram(now, encodeFrame({ kind: "data", channel, packet, offset, bytes }));
    }
    if (action === "x") return receiver.handleDatagram(now, Uint8Array.from(Buffer.from(args[0], "hex")));
    if (action === "g") return receiver.handleDatagram(now, encodeFrame({ kind: "gone", channel }));
    if (action === "h") receiver.setHidden(now, args[0] === "1");
    else if (action === "p") receiver.setPlayout(now, playoutOf(args.map(Number)));
    else if (action === "m") receiver.migrate(now, channel);
    else if (action === "r") this.receiver = new Receiver(now, channel, receiver.shown, this.config);
    else if (action === "s") receiver.stop();
    else assert.equal(action, "t");
    return null;
  }
}

test(`${cases.length} seeded sessions give what the Rust receiver gave`, () => {
  assert.ok(cases.length >= 200);
  for (const { seed, steps, ...setup } of cases) {
    const session = new Session(setup);
    for (const [index, step] of steps.split(",").entries()) {
      const fields = step.split(" ");
      const text = session.step(Number(fields[0]), fields[1], fields.slice(2, -1));
      const digest = crc32c(encodeUtf8(text)).toString(16).padStart(8, "0");
      assert.equal(digest, fields.at(-1), `seed ${seed}, step ${index} (${step}) gave ${text}`);
    }
  }
});
