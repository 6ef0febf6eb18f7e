/* Evidence of an answer: passages with what is cited and what is gold marked in their texts. The pages of a
   run and of the endpoint show it by this one code. */

const named = scores => Object.entries(scores).map(([name, value]) => name + " " + value.toFixed(3)).join(", ");
const sourceOf = chunk => chunk.slice(0, chunk.lastIndexOf(":"));

/* A text with ranges of it marked. Ranges count characters as Python does (code points), may overlap, and
   have a kind, cite or gold. */
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
    if (!kinds.size) out.append(piece);
    else out.append(make("mark", piece, kinds.size > 1 ? "both" : [...kinds][0]));
  }
  return out;
}

/* Where golds stand in a text, whole words in any case. */
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

/* Quotes are the sentence that states an answer, and the stretches that a prompt showed: one that lies in
   another is the sentence; where none does, all are cited. */
function cited(quotes) {
  const within = (a, b) => a !== b && a.source === b.source && a.start >= b.start && a.end <= b.end
    && a.end - a.start < b.end - b.start;
  const sentences = quotes.filter(q => quotes.some(other => within(q, other)));
  return sentences.length ? sentences : quotes;
}

const overlaps = (p, q) => sourceOf(p.chunk) === q.source && q.start < p.end && q.end > p.start;

/* One passage: p has chunk, url, start, end, scores and text (null: not kept); tags, each with its kind, are
   said of it. */
function passage(p, quotes, golds, tags) {
  const made = make("div", undefined, "passage"), foot = make("p", undefined, "soft");
  made.append(box("div", ...tags.map(([tag, kind]) => make("span", tag, "tag " + kind))));
  foot.append(link(p.url, p.file), p.section ? ", " + p.section : "", " \u00b7 characters " + p.start + " to " + p.end + (Object.keys(p.scores).length ? " \u00b7 " + named(p.scores) : ""));
  if (p.text === null || p.text === undefined) made.append(make("p", "Its text is not kept here.", "soft"));
  else {
    const ranges = cited(quotes).filter(q => overlaps(p, q)).map(q => ({ from: q.start - p.start, to: q.end - p.start, kind: "cite" }));
    const text = make("blockquote");
    text.append(marked(p.text, [...ranges, ...goldRanges(p.text, golds)]));
    made.append(text);
  }
  made.append(foot);
  return made;
}

/* A quote with what stands around it on its page. */
function quoted(c) {
  const made = make("div"), text = make("blockquote"), foot = make("p", undefined, "soft");
  text.append(c.before || "", make("mark", c.quote), c.after || "");
  foot.append(link(c.url), c.section ? ", " + c.section : "", " \u00b7 characters " + c.span.join(" to ") + (Object.keys(c.scores).length ? " \u00b7 " + named(c.scores) : ""));
  made.append(text, foot);
  return made;
}
