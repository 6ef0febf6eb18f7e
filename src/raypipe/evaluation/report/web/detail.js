/* Details of an opened question: reason of its score, passages by each ranker, prompts, replies, trace of a graph.
   `q` is a row of results.parquet. */

function detail(q, run, state, mark, file) {
  const made = make("div");
  made.append(verdict(q, state));
  if (mark) made.append(people(q, mark, file));
  made.append(evidence(q));
  if (q.replies.length) made.append(make("h3", "Replies"), ...q.replies.map(reply));
  if (q.faults.length) made.append(make("h3", "Faults"), table(["step", "reason", "tried again", "detail"], q.faults.map(f => [f.step, f.reason, f.transient ? "yes" : "no", f.detail || ""])));
  const took = Object.entries(q.seconds || {});
  if (q.degraded.length) made.append(make("p", "Left out, for time or a dead service: " + q.degraded.join(", ")));
  if (took.length) made.append(fold("Seconds: its share of the task that answered it", table(["stage", "seconds"], took.map(([stage, s]) => [stage, s.toFixed(3)]))));
  made.append(make("p", "raypipe inspect RUN " + q.id + "  explains this row; RUN is the folder of run " + run, "soft"));
  return made;
}

function verdict(q, state) {
  const made = make("div"), facts = make("dl", undefined, "said");
  const fact = (name, ...said) => facts.append(make("dt", name), box("dd", ...said));
  const pairs = (of, shown) => Object.entries(of).map(([name, value]) => box("span", make("i", name), " " + shown(value)));
  if (state) fact("verdict", make("i", undefined, "badge s-" + state.split(" ")[0]), make("b", state), q.reason ? ", because: " + q.reason.replaceAll("_", " ") : null);
  if (q.lost) fact("lost at", make("b", q.lost), q.lost_step ? ", step " + q.lost_step : null);
  if (q.golds.length) fact("expected", make("b", q.golds.join(" / ")));
  fact("outcome", q.outcome + (q.origin ? ", from " + q.origin : "") + (q.confidence === null ? "" : ", confidence " + q.confidence.toFixed(2)));
  if (q.asked_at) fact("asked at", q.asked_at);
  if (Object.keys(q.measures || {}).length) fact("measures", ...pairs(q.measures, x => x.toFixed(3)));
  if (Object.keys(q.labels).length) fact("labels", ...pairs(q.labels, x => x));
  made.append(facts);
  if (q.judge_response) made.append(fold("What the judge replied", make("pre", q.judge_response)));
  return made;
}

/* Makes the buttons with which a person labels an answer. The label outranks the judge and is written to `file`. */
function people(q, mark, file) {
  const made = make("p", undefined, "tools"), says = make("span", "to be written to " + file, "soft");
  made.append("A person says:");
  for (const label of ["right", "wrong", "unclear"]) {
    const button = make("button", label);
    button.disabled = q.answer === null;
    button.addEventListener("click", async () => { says.textContent = await mark(q, label); });
    made.append(button);
  }
  made.append(says);
  return made;
}

function evidence(q) {
  const made = make("div");
  if (!q.hits.length && !q.quotes.length) return made;
  const hits = q.hits.map((h, i) => ({ ...h, rank: i }));
  const rankers = [...new Set(hits.flatMap(h => Object.keys(h.scores)))];
  const order = document.createElement("select"), list = make("div"), prompted = q.replies.some(r => r.prompt);
  for (const name of ["final order", ...rankers.map(r => "order of " + r), "by page"]) order.append(make("option", name));
  order.setAttribute("aria-label", "Order of the passages");
  const places = {};
  for (const r of rankers) [...hits].filter(h => r in h.scores).sort((a, b) => b.scores[r] - a.scores[r]).forEach((h, i) => { (places[h.chunk] ||= {})[r] = i + 1; });
  const sort = () => {
    const ranker = rankers[order.selectedIndex - 1], page = order.value === "by page";
    let chosen = ranker ? hits.filter(h => ranker in h.scores).sort((a, b) => b.scores[ranker] - a.scores[ranker]) : [...hits];
    if (page) chosen.sort((a, b) => (a.url || "").localeCompare(b.url || "") || sourceOf(a.chunk).localeCompare(sourceOf(b.chunk)) || a.start - b.start);
    list.replaceChildren(...chosen.map(h => one(h, q, places[h.chunk] || {}, prompted)));
  };
  order.addEventListener("change", sort);
  const tools = box("div", order, make("span", hits.filter(h => h.ranked).length + " of " + hits.length + " passages stand in the final ranking", "soft"));
  tools.className = "tools";
  made.append(make("h3", "Passages"), tools, list);
  sort();
  const alone = q.quotes.filter(c => c.text && !hits.some(h => h.text !== null && overlaps(h, c)));
  if (alone.length) made.append(make("h3", "Cited from elsewhere"), ...alone.map(c => quoted({ quote: c.text, span: [c.start, c.end], scores: {}, url: c.source })));
  return made;
}

function one(h, q, places, prompted) {
  const tags = [["#" + (h.rank + 1), "rank"]], quotes = q.quotes.filter(c => overlaps(h, c));
  if (!h.ranked) tags.push(["not ranked", "off"]);
  if (quotes.length) tags.push([q.outcome === "abstained" ? "closest" : prompted ? "shown to the model" : "cited", "cite"]);
  if (h.text !== null && goldRanges(h.text, q.golds).length) tags.push(["has the gold", "gold"]);
  const made = passage({ ...h, places }, q.quotes, q.golds, tags), others = make("a", "answers that rest on this source");
  others.href = "#" + new URLSearchParams({ src: sourceOf(h.chunk) });
  if (h.ranked || quotes.length) made.lastChild.append(" \u00b7 ", others);
  if (!h.ranked) made.classList.add("off");
  return made;
}

function reply(r) {
  const said = [r.label];
  if (r.confidence !== null) said.push("confidence " + r.confidence.toFixed(2));
  if (r.logprob !== null) said.push("log-probability " + r.logprob.toFixed(2));
  if (r.prompt_tokens !== null) said.push(r.prompt_tokens + " tokens in, " + r.generated_tokens + " out");
  if (r.finish === "length") said.push("cut at its length");
  const made = make("div");
  made.append(box("p", make("b", r.step + " "), make("span", said.join(" \u00b7 "), "soft")));
  made.append(r.label === "trace" ? trace(r.text) : box("blockquote", marked(r.text, markdown(r.text))));
  if (r.fault) made.append(make("p", r.fault, "soft"));
  if (r.prompt) made.append(fold("Prompt", ...r.prompt.map(m => box("div", make("p", m.role, "soft"), make("pre", m.content)))));
  return made;
}

/* Shows the calls of a graph: a line of JSON for each. */
function trace(text) {
  const calls = [];
  for (const line of text.split("\n").filter(Boolean)) {
    let said;
    try { said = JSON.parse(line); } catch { return make("pre", text); }
    calls.push(Object.entries(said).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]));
  }
  const made = make("div");
  made.append(make("p", "Graph: " + calls.length + " calls", "soft"), ...calls.map(c => table(["", ""], c)));
  return made;
}
