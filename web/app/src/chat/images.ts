// Pictures for a question, as `data:` URLs that are small enough to be sent and kept.

/** Up to this length of its URL a picture stays as it is, characters: ten of them fit into a request. */
const MAX_WHOLE = 700_000;

/** Longest URL of a picture that was made smaller, characters. */
const MAX_URL = 1_400_000;

/** Longest side of a picture that is made smaller, px: larger ones are scaled down by models themselves. */
const MAX_SIDE = 1_568;

/** How files of pictures begin, and what stands at their eighth byte, as Latin-1 text. */
const SIGNATURES: readonly { readonly type: string; readonly begins: string; readonly inner?: string }[] = [
  { type: "image/png", begins: "\x89PNG\r\n\x1a\n" },
  { type: "image/jpeg", begins: "\xff\xd8\xff" },
  { type: "image/gif", begins: "GIF87a" },
  { type: "image/gif", begins: "GIF89a" },
  { type: "image/webp", begins: "RIFF", inner: "WEBP" },
];

/** The media type of a picture that models take; `null` for other files. */
export function imageType(bytes: ArrayBuffer): string | null {
  const head = String.fromCharCode(...new Uint8Array(bytes.slice(0, 12)));
  return SIGNATURES.find(({ begins, inner = "" }) => head.startsWith(begins) && head.startsWith(inner, 8))?.type ?? null;
}

/**
 * The picture `bytes` of `type` as a URL, made smaller if it is too large to be sent.
 *
 * @throws {Error} that says in words why it cannot be sent.
 */
export async function imageUrl(bytes: ArrayBuffer, type: string): Promise<string> {
  const picture = new Blob([bytes], { type });
  const whole = await urlOf(picture);
  const url = whole.length <= MAX_WHOLE ? whole : await urlOf(await smaller(picture));
  if (url.length > MAX_URL) throw new Error("is too large a picture to be sent");
  return url;
}

function urlOf(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new Error("cannot be read"));
    reader.readAsDataURL(blob);
  });
}

async function smaller(picture: Blob): Promise<Blob> {
  const bitmap = await createImageBitmap(picture).catch(() => {
    throw new Error("cannot be read as a picture");
  });
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.ceil(bitmap.width * scale), Math.ceil(bitmap.height * scale));
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("cannot be read as a picture");
  // JPEG knows no transparency: it would become black.
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return await canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
}
