// The live laboratory without a page: what its server says is checked, and stalls are noticed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { readOffer } = await load("lab/live/offer.ts");
const { laneEvents, readNews } = await load("lab/live/link_events.ts");
const { StallWatch } = await load("lab/live/stall_watch.ts");
const { WEATHER_CONTROLS } = await load("lab/live/weather_controls.ts");

const OFFER = {
  network: "modelled",
  tcp_url: "http://127.77.0.1:8080/",
  loquent_url: "http://127.77.0.2:8080/",
  weather: { rtt_ms: 200, loss: 0.15, burst_ms: 100, seed: 1 },
  question: "Why?",
  max_tokens: 300,
  tokens_per_s: 30,
};

test("an offer is read", () => {
  const offer = readOffer(OFFER);
  assert.equal(offer.tcpUrl.href, OFFER.tcp_url);
  assert.equal(offer.network, "modelled");
  assert.deepEqual(offer.weather, OFFER.weather);
  assert.equal(readOffer({ ...OFFER, weather: { ...OFFER.weather, rate_kbps: 64 } }).weather.rate_kbps, 64);
});

test("an offer leads to this machine alone, and makes sense", () => {
  for (const wrong of [
    null,
    [],
    "x",
    { ...OFFER, network: "other" },
    { ...OFFER, tcp_url: "http://192.0.2.1:8080/" },
    { ...OFFER, tcp_url: "http://127.0.0.1.example/" },
    { ...OFFER, loquent_url: "javascript:alert(1)" },
    { ...OFFER, loquent_url: "https://127.77.0.2/" },
    { ...OFFER, question: 1 },
    { ...OFFER, max_tokens: 1e9 },
    { ...OFFER, tokens_per_s: 0 },
    { ...OFFER, weather: { ...OFFER.weather, loss: 2 } },
    { ...OFFER, weather: { ...OFFER.weather, rate_kbps: "fast" } },
    { ...OFFER, weather: { ...OFFER.weather, seed: Number.NaN } },
  ]) {
    assert.equal(readOffer(wrong), null, JSON.stringify(wrong));
  }
});

test("news become packets, and what is none is left out", () => {
  const packets = [[0, 0, 2.5, 100, 102.5], [1, 1, 3, 60, -1], [2, 0, 1, 1, 1], [0, 0, "x", 1, 1], [0, 0, 1, 1e9, 1], null, [0.5, 0, 1, 1, 1]];
  const news = readNews(JSON.stringify({ run: 3, packets }));
  assert.deepEqual(news, {
    run: 3,
    packets: [
      { lane: "tcp", way: "down", at: 2.5, bytes: 100, arrivesAt: 102.5 },
      { lane: "loquent", way: "up", at: 3, bytes: 60, arrivesAt: null },
    ],
  });
  for (const wrong of ["", "[]", "null", '{"run":1}', '{"run":-1,"packets":[]}', "{"]) assert.equal(readNews(wrong), null);
});

test("a packet is sent, and arrives or is lost", () => {
  const [down, up] = readNews(JSON.stringify({ run: 1, packets: [[0, 0, 1, 100, 51], [0, 1, 2, 60, -1]] })).packets;
  assert.deepEqual(laneEvents(down, 7), [
    { kind: "sent", at: 1, packet: 7, way: "down", bytes: 100, carried: null },
    { kind: "arrived", at: 51, packet: 7 },
  ]);
  assert.deepEqual(laneEvents(up, 8)[1], { kind: "lost", at: 2, packet: 8 });
});

test("a stall begins with the text before it and ends with the text after it", () => {
  const watch = new StallWatch(30);
  assert.deepEqual(watch.handleTime(5_000), [], "the model is at work");
  assert.deepEqual(watch.handleText(6_000), []);
  assert.deepEqual(watch.handleTime(6_200), []);
  assert.deepEqual(watch.handleTime(6_250), [{ kind: "stalled", at: 6_200, since: 6_000 }]);
  assert.deepEqual(watch.handleTime(6_300), []);
  assert.deepEqual(watch.handleText(6_900), [{ kind: "resumed", at: 6_900 }]);
  const late = watch.handleText(7_500);
  assert.deepEqual(late.map(({ kind }) => kind), ["stalled", "resumed"], "also if nobody looked meanwhile");
  assert.deepEqual(watch.handleEnd(7_600, true), [{ kind: "ended", at: 7_600, complete: true }]);
  assert.deepEqual(watch.handleTime(9_000), []);
});

test("a slow model's own gaps are no stalls", () => {
  const watch = new StallWatch(2);
  watch.handleText(0);
  assert.deepEqual(watch.handleTime(1_400), []);
  assert.equal(watch.handleTime(1_600)[0].kind, "stalled");
});

test("sliders change one thing each, and stay within what the server takes", () => {
  for (const control of WEATHER_CONTROLS) {
    const changed = control.write(OFFER.weather, control.most);
    assert.equal(control.read(changed), control.most);
    assert.equal(Object.keys(changed).filter((name) => changed[name] !== OFFER.weather[name]).length, 1);
  }
  const worst = WEATHER_CONTROLS.reduce((weather, { write, most }) => write(weather, most), OFFER.weather);
  assert.ok(worst.loss <= 0.6 && worst.rtt_ms <= 2_000 && worst.burst_ms <= 5_000);
});
