// Formulas: as they were written at once, as MathML when the library has come. It is loaded when
// the first formula is there. Elements are made one by one from its tree, known ones only, and
// styles are set through the style sheets' interface, as the page's policy has no style attributes.

/** Longer formulas stay as they were written. */
const LONGEST = 3_000;

/** Formulas are set for so long in one frame, ms. */
const SLICE_MS = 8;

/** Formulas of one page that may wait. */
const MOST_WAITING = 2_000;

const MATHML = "http://www.w3.org/1998/Math/MathML";

/** A node of the library's tree, as far as it is used here. */
interface TreeNode {
  readonly type?: string;
  readonly text?: string;
  readonly attributes?: Readonly<Record<string, unknown>>;
  readonly classes?: readonly string[];
  readonly style?: Readonly<Record<string, unknown>>;
  readonly children?: readonly TreeNode[];
}

type Typeset = (source: string, display: boolean) => TreeNode;

const ELEMENTS = new Set(
  (
    "math semantics mrow mi mn mo ms mspace mtext mfrac msqrt mroot mstyle merror mpadded mphantom menclose " +
    "msub msup msubsup munder mover munderover mmultiscripts mprescripts none mtable mtr mtd mlabeledtr"
  ).split(" "),
);

const ATTRIBUTES = new Set(
  (
    "display displaystyle scriptlevel mathvariant mathcolor mathbackground mathsize stretchy symmetric largeop movablelimits " +
    "fence separator lspace rspace minsize maxsize accent accentunder linethickness width height depth voffset form " +
    "columnalign rowalign columnspacing rowspacing columnlines rowlines columnspan rowspan notation dir side"
  ).split(" "),
);

const STYLES = /^(?:padding|margin|border|color|background-color|width|height|vertical-align|text-align|font-size|font-weight|display|white-space|position|top|left|bottom|right|transform|math-style|math-depth|math-shift|line-height)(?:-[a-z-]+)?$/;

/** Deeper trees stay text. */
const DEEPEST = 60;
const MOST_NODES = 4_000;

interface Waiting {
  readonly target: Element;
  readonly source: string;
  readonly display: boolean;
}

const waiting: Waiting[] = [];
let typesetting: Promise<Typeset | null> | null = null;
let isWorking = false;

/** Shows the formula `source` in `target`, soon. `target` shows it as it was written until then. */
export function showMath(target: Element, source: string, display: boolean): void {
  if (source.trim() === "" || source.length > LONGEST || waiting.length >= MOST_WAITING) return;
  waiting.push({ target, source, display });
  if (!isWorking) void work();
}

async function work(): Promise<void> {
  isWorking = true;
  typesetting ??= load();
  const typeset = await typesetting;
  while (waiting.length > 0) {
    await new Promise((resolve) => requestAnimationFrame(resolve));
    const deadline = performance.now() + SLICE_MS;
    while (waiting.length > 0 && performance.now() < deadline) show(typeset, waiting.shift());
  }
  isWorking = false;
}

async function load(): Promise<Typeset | null> {
  try {
    const { default: temml } = await import("temml");
    const options = { throwOnError: true, strict: false, trust: false, maxExpand: 200, maxSize: [20, 20] as [number, number] };
    return (source, displayMode) => temml.__renderToMathMLTree(source, { ...options, displayMode }) as TreeNode;
  } catch {
    return null;
  }
}

function show(typeset: Typeset | null, formula: Waiting | undefined): void {
  if (typeset === null || formula === undefined) return;
  const { target, source, display } = formula;
  try {
    const made = new Builder().build(typeset(source, display), 0);
    if (made instanceof Element) made.setAttribute("aria-label", source.trim());
    target.replaceChildren(made);
    target.classList.add("set");
  } catch {
    // What the library cannot read is shown as it was written.
    target.classList.add("unset");
  }
}

/** Makes elements of a tree. Throws at what a formula has no use for. */
class Builder {
  #nodes = 0;

  build(node: TreeNode, depth: number): Node {
    this.#nodes += 1;
    if (depth > DEEPEST || this.#nodes > MOST_NODES) throw new RangeError("too large a formula");
    if (node.text !== undefined && node.type === undefined) return document.createTextNode(String(node.text));
    const made = elementOf(node);
    for (const child of node.children ?? []) made.append(this.build(child, depth + 1));
    return made;
  }
}

function elementOf(node: TreeNode): Element | DocumentFragment {
  // A fragment has children alone; a span has attributes, if only none.
  if (node.type === undefined && node.attributes === undefined) return document.createDocumentFragment();
  const name = node.type ?? "span";
  if (node.type !== undefined && !ELEMENTS.has(name)) throw new TypeError(`no ${name} in formulas`);
  const made = node.type === undefined ? document.createElement("span") : document.createElementNS(MATHML, name);
  const classes = (node.classes ?? []).filter((one) => /^[a-z][a-z-]*$/.test(one));
  if (classes.length > 0) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(node.attributes ?? {})) {
    if (ATTRIBUTES.has(key) && String(value).length < 100) made.setAttribute(key, String(value));
  }
  setStyles(made, node.style ?? {});
  return made;
}

function setStyles(made: Element, styles: Readonly<Record<string, unknown>>): void {
  if (!("style" in made)) return;
  for (const [key, value] of Object.entries(styles)) {
    const property = key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    const text = String(value);
    if (STYLES.test(property) && /^[\w\s.%#(),+*-]{0,100}$/.test(text)) (made as HTMLElement).style.setProperty(property, text);
  }
}
