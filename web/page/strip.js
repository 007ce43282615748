// A strip of the last seconds: a line for each token shown, so that a steady flow is a
// steady pattern and a stall is a gap.

const WINDOW_MS = 12_000;

/** A gap that readers notice, ms. */
const STALL_MS = 200;

/** Draws tokens on a canvas until it is stopped. */
export class Strip {
  #canvas;
  #times = [];
  #frame = null;

  constructor(canvas) {
    this.#canvas = canvas;
  }

  /** A token was shown at `time`, ms of `performance.now()`. */
  add(time) {
    this.#canvas.hidden = false;
    this.#times.push(time);
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  /** No more tokens: the strip stays as it is. */
  stop() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    if (this.#times.length > 0) this.#paint(this.#times.at(-1));
    this.#times = [];
  }

  #draw() {
    const now = performance.now();
    this.#times = this.#times.filter((time) => time > now - WINDOW_MS);
    this.#paint(now);
    this.#frame = this.#times.length > 0 ? requestAnimationFrame(() => this.#draw()) : null;
  }

  #paint(now) {
    const scale = globalThis.devicePixelRatio || 1;
    const [width, height] = [this.#canvas.clientWidth * scale, this.#canvas.clientHeight * scale];
    if (this.#canvas.width !== width) this.#canvas.width = width;
    if (this.#canvas.height !== height) this.#canvas.height = height;
    const pen = this.#canvas.getContext("2d");
    const style = getComputedStyle(this.#canvas);
    const x = (time) => width - ((now - time) / WINDOW_MS) * width;
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = style.getPropertyValue("border-bottom-color");
    for (const [at, time] of this.#times.entries()) {
      const gap = time - (this.#times[at - 1] ?? time);
      if (gap > STALL_MS) pen.fillRect(x(time - gap), height * 0.75, x(time) - x(time - gap), height * 0.25);
    }
    pen.fillStyle = style.color;
    for (const time of this.#times) pen.fillRect(x(time), 0, Math.max(1, scale), height);
  }
}
