// Markdown of messages: what is read, that it does not depend on how the pieces come, and that
// nothing is read over and over.
import assert from "node:assert/strict";
import { test } from "node:test";
import { inline, inlineInPieces, outline } from "./outline.mjs";
import { load } from "./module.mjs";

const { readInline } = await load("message/markdown/inline.ts");
const { safeHref } = await load("message/markdown/links.ts");

const BLOCKS = [
  ["# One\n## Two ##\ntext", "h1(One) h2(Two ##) p(text)"],
  ["Title\n===\nSub\n---\n", "h1(Title) h2(Sub)"],
  ["a\nb\n\nc", "p(a\nb) p(c)"],
  ["- a\n- b\n  - c\n\n1. x\n2. y", "ul(li(p(a))li(p(b)ul(li(p(c))))) ol1(li(p(x))li(p(y)))"],
  ["- a\n\n- b", "ul~(li(p(a))li(p(b)))"],
  ["1. a\n  - b\n2. c", "ol1(li(p(a)ul(li(p(b))))li(p(c)))"],
  ["3) a\n4) b", "ol3(li(p(a))li(p(b)))"],
  ["- [ ] a\n- [x] b", "ul(todo(p(a))done(p(b)))"],
  ["In\n1984. it was", "p(In\n1984. it was)"],
  ["- item\nlazy", "ul(li(p(item\nlazy)))"],
  ["> a\n> b\n\nc", "quote(p(a\nb)) p(c)"],
  ["> - a\n>   b", "quote(ul(li(p(a\nb))))"],
  ["---\n***\n- - -\nx", "rule() rule() rule() p(x)"],
  ["```js\nlet a;\n\nlet b;\n```\nafter", "code:js(let a;\n\nlet b;\n) p(after)"],
  ["````\n```\n````", "code:(```\n)"],
  ["~~~\n# no\n~~~", "code:(# no\n)"],
  ["- ```\n  a\n    b\n  ```\n- c", "ul(li(code:(a\n  b\n))li(p(c)))"],
  ["```\nnever closed", "code:(never closed\n)"],
  ["| a | b |\n|---|:-:|\n| 1 | `|` |\n| x \\| y |", "table(row(th(a)th:center(b))row(td(1 )td:center(`)td(` ))row(td(x | y )))"],
  ["a | b\n--- | ---\n1 | 2\nafter", "table(row(th(a)th(b))row(td(1 )td(2))) p(after)"],
  ["|x| = 5\nmore", "p(|x| = 5\nmore)"],
  ["| a | b |\n| - |", "p(| a | b |\n| - |)"],
  ["$$\nx^2\n$$\nand", "math(\nx^2\n) p(and)"],
  ["\\[ y \\] then", "math( y ) p(then)"],
  ["[a]: https://x.y\n[B  c]: <https://x.z> \"t\"\n\nx", "define(a https://x.y) define(b c https://x.z) p(x)"],
  ["x\n[a]: https://x.y", "p(x\n<ref a>[a]</>: <a https://x.y>https://x.y</a>)"],
  ["[a]: two words\n[b]:", "p(<ref a>[a]</>: two words\n<ref b>[b]</>:)"],
  ["[^1]: one\nmore\n[^n]: *two*\n\nx", "note:^1(one\nmore) note:^n(<em>two</>) p(x)"],
  ["- [a]: https://x.y\n- [ ] b", "ul(li(define(a https://x.y))todo(p(b)))"],
  ["$$ never\n\nclosed", "plain( never\n) p(closed)"],
];

const INLINE = [
  ["**b** *e* ***be*** ~~s~~ ~x~", "<b>b</> <em>e</> <em><b>be</></> <s>s</> ~x~"],
  ["snake_case_name __init__ _e_", "snake_case_name <b>init</> <em>e</>"],
  ["2 * 3 * 4 and a*b*c", "2 * 3 * 4 and a<em>b</>c"],
  ["`a` ``b ` c`` `d", "<code>a</code> <code>b ` c</code> `d"],
  ["[a](https://x.y/(z)) [b] [1] [c] (d)", "<a https://x.y/(z)>a</a> <ref b>[b]</> <ref 1>[1]</> <ref c>[c]</> (d)"],
  ["[a b][ C ] [*d*][] x[^1] [^ ] [] [a\nb]", "<ref c>[a b][ C ]</> <ref *d*>[<em>d</>][]</> x<note ^1> [^ ] [] <ref a b>[a\nb]</>"],
  ["[a [b](http://x.y) c] ![i][j]", "[a <a http://x.y>b</a> c] ![i]<ref j>[j]</>"],
  ["![i](https://x.y/i.png \"title\")", "<img https://x.y/i.png i>"],
  ["<https://a.b> <br> <b>no</b> 1 < 2", "<a https://a.b>https://a.b</a> <br> <b>no</b> 1 < 2"],
  ["see https://a.b/c_d), or www.e.f.", "see <a https://a.b/c_d>https://a.b/c_d</a>), or <a https://www.e.f>www.e.f</a>."],
  ["&lt; &#65; &#x1F600; &nope; AT&T", "< A 😀 &nope; AT&T"],
  ["$x$ costs $5 and $10, \\(y\\) $$z$$", "<math>x</> costs $5 and $10, <math>y</> <display>z</>"],
  ["\\*no\\* \\a", "*no* \\a"],
];

for (const [source, wanted] of BLOCKS) {
  test(`blocks: ${JSON.stringify(source)}`, () => {
    assert.equal(outline(source), wanted);
    assert.equal(outline(...source), wanted, "letter by letter");
  });
}

for (const [source, wanted] of INLINE) {
  test(`running text: ${source}`, () => {
    assert.equal(inline(source), wanted);
    assert.equal(inlineInPieces([...source]), wanted, "letter by letter");
  });
}

/** A generator of whole numbers below `end`, the same in each run. */
function random(seed) {
  let state = seed;
  return (end) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return (state >> 16) % end;
  };
}

const MARKS = "* ** _ ` `` $ $$ [ ] ( ) ![ ](http://x.y) \\ \\( \\) ~~ < <br> &amp; & http://a.b www.c.d a b1 word ! . 5".split(" ").concat(" ", "  ", "\n");
const LINES = ["\n", "\n\n", "- ", "* ", "1. ", "2) ", "> ", "# ", "```", "```js\n", "~~~", "|", "|-|-|\n", "| a | b |\n", "---\n", "===\n", "    ", "\t", "- [ ] ", "$$\n", "\\[\n", "[a]: http://x.y\n", "[^1]: ", "[^1]", "[a]"];

/** A text of random parts, and the same in random pieces. */
function sample(next, parts) {
  let text = "";
  for (let count = 1 + next(14); count > 0; count -= 1) text += parts[next(parts.length)];
  const pieces = [];
  for (let at = 0; at < text.length; at += pieces.at(-1).length) pieces.push(text.slice(at, at + 1 + next(4)));
  return { text, pieces };
}

test("the way in which pieces come changes nothing", () => {
  const next = random(18);
  for (let run = 0; run < 15_000; run += 1) {
    const line = sample(next, MARKS);
    assert.equal(inlineInPieces(line.pieces), inline(line.text), JSON.stringify(line.text));
    const block = sample(next, [...MARKS, ...LINES]);
    assert.equal(outline(...block.pieces), outline(block.text), JSON.stringify(block.text));
  }
});

test("text without open marks settles at once", () => {
  const { settled, length, open } = readInline("Plain words, **bold** and `code` here", "", false);
  assert.equal(length, "Plain words, **bold** and `code` here".length);
  assert.equal(settled.length, 5);
  assert.deepEqual(open, []);
});

test("an open mark is shown as if it were closed, and keeps only what follows it open", () => {
  const { settled, length, open } = readInline("Settled **open", "", false);
  assert.equal(length, "Settled ".length);
  assert.deepEqual(settled, [{ is: "text", text: "Settled " }]);
  assert.deepEqual(open, [{ is: "strong", children: [{ is: "text", text: "open" }] }]);
});

test("links lead to web and mail alone", () => {
  for (const href of ["https://a.b/c", "http://a.b/", "mailto:a@b.c"]) assert.equal(safeHref(href), href);
  const refused = ["javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:x", "java\nscript:x", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "blob:https://a.b/c", "/lab", "//a.b", "lab", "#x", "http:", `https://a.b/${"x".repeat(3_000)}`];
  for (const href of refused) assert.equal(safeHref(href), null, href);
});

test("a row has an end", () => {
  const table = outline(`|a|b|\n|-|-|\n${"|x".repeat(500)}|\n`);
  assert.ok(table.split("td(").length <= 52, table.slice(0, 200));
  assert.equal(table.split("x").length, 501, "what has no column is text of the last one");
});

test("depth has an end", () => {
  const deep = outline(`${"> ".repeat(500)}x`);
  assert.ok(deep.split("quote(").length <= 17, deep.slice(0, 200));
  const emphasis = inline(`${"*a ".repeat(200)}${"b* ".repeat(200)}`);
  let [depth, deepest] = [0, 0];
  for (const [tag] of emphasis.matchAll(/<em>|<\/>/g)) deepest = Math.max(deepest, (depth += tag === "<em>" ? 1 : -1));
  assert.ok(deepest <= 12, `${deepest}`);
});
