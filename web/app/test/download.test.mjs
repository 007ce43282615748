// What the page makes of the server's word on a download.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { download, downloadText, downloads, readDownload } = await load("chat/download.ts");

const told = (more) => ({ job_id: "job_1", requested: "qwen3:0.6b", status: "downloading", downloaded_bytes: 0, total_size_bytes: 0, ...more });
const says = (more) => downloadText(readDownload(told(more)));

test("each state of a download has its words", () => {
  assert.equal(says({}), "looking for it");
  assert.equal(says({ downloaded_bytes: 12_340_000, total_size_bytes: 640_000_000, bytes_per_second: 1e7 }), "12.3 of 640 MB, 63 s left");
  assert.equal(says({ downloaded_bytes: 1e6, total_size_bytes: 2e6 }), "1.0 of 2.0 MB");
  assert.equal(says({ downloaded_bytes: 1e6, total_size_bytes: 8e9, bytes_per_second: 1e6 }), "1.0 of 8000 MB, 2 h left");
  assert.equal(says({ status: "completed", model: "Qwen3-0.6B-Q8_0" }), "Qwen3-0.6B-Q8_0 is on the server. Your next question goes to it.");
  assert.match(says({ status: "paused", downloaded_bytes: 1e6, total_size_bytes: 2e6 }), /^stopped at 1.0 of 2.0 MB/);
  assert.equal(says({ status: "failed", error: "no such model" }), "no such model");
});

test("what is no download is none, and what is wrong in one is left out", () => {
  for (const value of [undefined, null, 7, [], {}, told({ status: "flying" }), told({ job_id: 7 }), told({ requested: "" })]) assert.equal(readDownload(value), null);
  const odd = readDownload(told({ downloaded_bytes: -1, total_size_bytes: "many", bytes_per_second: Infinity, error: "x".repeat(9999) }));
  assert.deepEqual([odd.doneBytes, odd.totalBytes, odd.bytesPerSecond, odd.why.length], [0, 0, 0, 500]);
});

test("a download is looked at again after a look that failed, until the server does not know it", async () => {
  const looks = [];
  const answers = [told(), null, { status: 503 }, told({ downloaded_bytes: 7 }), { status: 404 }];
  globalThis.fetch = async (path) => {
    const answer = answers[looks.push(path) - 1];
    if (answer === null) throw new TypeError("no network");
    return Response.json(answer, { status: answer.status > 0 ? answer.status : 200 });
  };
  const seen = [];
  const stop = downloads.subscribe((now) => now.is === "offered" && seen.push([now.latest?.doneBytes ?? null, now.refusal.slice(0, 25)]));
  await download("qwen3:0.6b");
  while (looks.length < answers.length || seen.length < answers.length) await new Promise((resolve) => setTimeout(resolve, 20));
  stop();
  const refused = "The server refused this w";
  assert.deepEqual(seen, [[0, ""], [0, "The server does not answe"], [0, refused], [7, ""], [null, refused]]);
  assert.equal(new Set(looks.slice(1)).size, 1);
});
