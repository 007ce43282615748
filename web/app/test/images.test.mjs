// Which files are pictures.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./module.mjs";

const { imageType } = await load("chat/images.ts");

const type = (...bytes) => imageType(Uint8Array.from(bytes).buffer);
const ascii = (text) => [...Buffer.from(text, "latin1")];

test("a file is a picture by its first bytes, whatever its name", () => {
  assert.equal(type(0x89, ...ascii("PNG\r\n\x1a\n"), 0, 0), "image/png");
  assert.equal(type(0xff, 0xd8, 0xff, 0xe0), "image/jpeg");
  assert.equal(type(...ascii("GIF89a")), "image/gif");
  assert.equal(type(...ascii("RIFF"), 10, 13, 0, 0xff, ...ascii("WEBPVP8 ")), "image/webp");
  for (const other of ["", "PNG", "%PDF-1.7", "<svg xmlns=", "RIFF\0\0\0\0WAVE", "GIF90a"]) assert.equal(type(...ascii(other)), null, other);
});
