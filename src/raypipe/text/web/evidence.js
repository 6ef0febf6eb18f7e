/* Evidence of an answer: passages, with citations and gold answers marked in their texts. The pages of a run
   and of the endpoint share this code. */

const sourceOf = chunk => chunk.slice(0, chunk.lastIndexOf(":"));

/* Marks ranges of a text. Ranges count code points, as Python does, and may overlap. Their kind is cite, gold,
   the name of an element for emphasis, or off for hidden text. */
function marked(text, ranges) {
  const out = document.createDocumentFragment();
  const inside = ranges.filter(r => r.from < r.to);
  if (!inside.length) { out.append(text); return out; }
  const chars = Array.from(text);
  const edges = [0, chars.length, ...inside.flatMap(r => [r.from, r.to])];
  const cuts = [...new Set(edges.map(e => Math.min(Math.max(e, 0), chars.length)))].sort((a, b) => a - b);
  for (let i = 0; i + 1 < cuts.length; i++) {
    const piece = chars.slice(cuts[i], cuts[i + 1]).join("");
    const kinds = new Set(inside.filter(r => r.from <= cuts[i] && r.to >= cuts[i + 1]).map(r => r.kind));
    if (kinds.has("off")) continue;
    let shown = document.createTextNode(piece);
    for (const tag of TAGS) if (kinds.has(tag)) shown = box(tag, shown);
    if (kinds.has("cite") || kinds.has("gold")) {
      shown = box("mark", shown);
      shown.className = !kinds.has("gold") ? "cite" : kinds.has("cite") ? "both" : "gold";
    }
    out.append(shown);
  }
  return out;
}

/* Finds Markdown as ranges of a text. Only elements of the kinds in TAGS are made, never markup from a text. In
   each form the first group is the opening mark, the second the shown text. */
const TAGS = ["code", "em", "strong", "u"];
const FORMS = [
  [/()(?:\n|^)[ \t]*(?:[-=*_~]{3,}|```\w*|\|[-:| ]+\|)[ \t]*$()/gm, "off"], [/(^#{1,6} +)(.+)$/gm, "strong"], [/(`{1,3})([^`\n]+)\1/g, "code"],
  [/(\*\*|__)(?=\S)([^\n]+?)(?<=\S)\1/g, "strong"], [/(?<![*\w])(\*)(?![*\s])([^*\n]+?)(?<!\s)\*(?![*\w])/g, "em"],
  [/(\[)([^\]\n]+)\]\([^()\s]+\)/g, "u"],
];
function markdown(text) {
  const found = [], at = i => Array.from(text.slice(0, i)).length;
  for (const [form, kind] of FORMS) for (const m of text.matchAll(form)) {
    const from = at(m.index), start = at(m.index + m[1].length), end = at(m.index + m[1].length + m[2].length), to = at(m.index + m[0].length);
    if (kind === "off") found.push({ from, to, kind });
    else found.push({ from, to: start, kind: "off" }, { from: start, to: end, kind }, { from: end, to, kind: "off" });
  }
  return found;
}
const isMarkdown = url => /\.(md|markdown)(#.*)?$/i.test(url || "");

/* Finds the gold answers in a text, as whole words, in any case. */
function goldRanges(text, golds) {
  const found = [];
  for (const gold of golds) {
    const words = gold.trim().replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s+/g, "\\s+");
    if (!words) continue;
    for (const m of text.matchAll(new RegExp("(?<![\\p{L}\\p{N}])" + words + "(?![\\p{L}\\p{N}])", "giu"))) {
      const from = Array.from(text.slice(0, m.index)).length;
      found.push({ from, to: from + Array.from(m[0]).length, kind: "gold" });
    }
  }
  return found;
}

/* Selects the quotes to mark. Quotes are the sentence that states an answer, and the passages of the prompt. A
   quote within another quote is the sentence; if there is none, all quotes are marked. */
function cited(quotes) {
  const within = (a, b) => a !== b && a.source === b.source && a.start >= b.start && a.end <= b.end
    && a.end - a.start < b.end - b.start;
  const sentences = quotes.filter(q => quotes.some(other => within(q, other)));
  return sentences.length ? sentences : quotes;
}

const overlaps = (p, q) => sourceOf(p.chunk) === q.source && q.start < p.end && q.end > p.start;

/* Makes the element of a passage. `p` has chunk, url, start, end, scores and text (null: not stored). `tags`
   are pairs of a label and its kind. */
function passage(p, quotes, golds, tags) {
  const made = make("div", undefined, "passage"), foot = make("p", undefined, "soft");
  made.append(box("div", ...tags.map(([tag, kind]) => make("span", tag, "tag " + kind))));
  foot.append(link(p.url, p.file, (quotes.find(q => overlaps(p, q)) || {}).text), p.section ? ", " + p.section : "", " \u00b7 characters " + p.start + " to " + p.end);
  const scores = Object.entries(p.scores);
  if (scores.length) foot.append(" \u00b7 ", ...scores.map(([name, score]) => box("span", make("i", name), " " + (p.places?.[name] ? "#" + p.places[name] + " " : "") + score.toFixed(3))));
  if (p.text === null || p.text === undefined) made.append(make("p", "The text of this passage is not stored.", "soft"));
  else {
    const ranges = cited(quotes).filter(q => overlaps(p, q)).map(q => ({ from: q.start - p.start, to: q.end - p.start, kind: "cite" }));
    const text = make("blockquote");
    text.append(marked(p.text, [...ranges, ...goldRanges(p.text, golds), ...(isMarkdown(p.url) ? markdown(p.text) : [])]));
    made.append(text);
  }
  made.append(foot);
  return made;
}

/* Makes a quote with its context on its page. `to`: the element of its passage, to which a file's name links;
   undefined if the page does not show the passage. */
function quoted(c, to) {
  const made = make("div"), text = make("blockquote"), foot = make("p", undefined, "soft");
  const whole = (c.before || "") + c.quote + (c.after || ""), from = Array.from(c.before || "").length;
  text.append(marked(whole, [{ from, to: from + Array.from(c.quote).length, kind: "cite" }, ...(isMarkdown(c.url) ? markdown(whole) : [])]));
  foot.append(link(c.url, "", c.quote, to), c.section ? ", " + c.section : "", " \u00b7 characters " + c.span.join(" to "));
  made.append(text, foot);
  return made;
}
