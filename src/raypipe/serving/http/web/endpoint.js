/* The endpoint's page: a question, its stages as they pass, the answer with its evidence. */

const OUTCOMES = { answered: "Answered.", abstained: "No answer was found.", false_premise: "The question assumes something that is not so.", fault: "Answering failed." };
const SHOWN = 10; // passages of the ranking
let stopper = null, ticking = 0;

function stage(data) {
  let item = [...at("stages").children].find(li => li.dataset.stage === data.stage);
  if (!item) { item = make("li"); item.dataset.stage = data.stage; at("stages").append(item); }
  const ended = data.ms !== undefined;
  item.className = ended ? "" : "on";
  item.textContent = data.stage + (ended ? " " + Math.round(data.ms) + " ms" : " …");
  if (!ended) at("draft").textContent = "";
}
function answer(reply) {
  const said = reply.answer ?? "Answering failed.";
  at("answer").replaceChildren(marked(said, markdown(said)));
  const about = [reply.outcome.replace("_", " ")];
  if (reply.confidence !== null) about.push("confidence " + reply.confidence.toFixed(2));
  if (reply.degraded.length) about.push("omitted: " + reply.degraded.join(", "));
  about.push(Math.round(reply.timings_ms.total) + " ms");
  at("about").textContent = about.join(" · ");
  at("evidence").hidden = !reply.citations.length;
  at("cited").textContent = reply.outcome === "abstained" ? "Closest" : "Evidence";
  const quotes = reply.citations.map(c => ({ source: c.source, start: c.span[0], end: c.span[1] }));
  const hits = (reply.passages || []).map(p => ({ ...p, start: p.span[0], end: p.span[1] }));
  const passages = hits.slice(0, SHOWN).map((p, i) => passage(p, quotes, [], [["#" + (i + 1), "rank"], ...(quotes.some(q => overlaps(p, q)) ? [[reply.outcome === "abstained" ? "closest" : "cited", "cite"]] : [])]));
  passages.forEach((p, i) => { p.id = "passage-" + (i + 1); p.tabIndex = -1; });
  at("passages").replaceChildren(...passages);
  if (!reply.citations.length) at("ranked").open = true; // else there is nothing to read
  const shown = c => quoted(c, passages[hits.findIndex(p => overlaps(p, { source: c.source, start: c.span[0], end: c.span[1] }))]);
  at("quotes").replaceChildren(...reply.citations.map(shown));
  at("others").hidden = !reply.others;
  at("other-values").replaceChildren(...(reply.others || []).map(shown));
  at("timings").replaceChildren(...Object.entries(reply.timings_ms).map(([name, ms]) => {
    const row = make("tr"), head = make("th", name); head.scope = "row"; row.append(head, make("td", ms.toFixed(1), "n")); return row;
  }));
  at("versions").textContent = "recipe " + reply.versions.recipe + (reply.versions.release ? " · release " + reply.versions.release : "");
  at("result").hidden = false; at("progress").hidden = true;
  at("answer").focus();
}
function failed(problem) {
  at("error").textContent = problem.detail + (problem.errors || []).map(e => " " + e.at + ": " + e.problem + ".").join("");
  if (problem.status === 401) { at("keyed").hidden = false; at("key").focus(); }
}
async function listen(response, on_event) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const lines = text.slice(0, end).split("\n");
      const event = lines.find(l => l.startsWith("event: ")), data = lines.find(l => l.startsWith("data: "));
      if (event && data) on_event(event.slice(7), JSON.parse(data.slice(6)));
    }
  }
}
const key = () => at("key").value ? { authorization: "Bearer " + at("key").value } : {};

/* The address of the page is that of the question. Texts of one's own are not in it. */
function remember() {
  const said = { q: at("query").value, ...(at("time").value ? { time: at("time").value } : {}) };
  history.replaceState(null, "", "#" + new URLSearchParams(said));
  at("link").href = location.href;
}

/* What is to be searched in place of the store, as search results: a text becomes a page of its own. */
async function documents() {
  const found = at("pasted").value.trim() ? [["pasted text", at("pasted").value, false]] : [];
  for (const file of at("files").files) found.push([file.name, await file.text(), /\.html?$/i.test(file.name)]);
  return found.map(([name, text, html]) => ({ page_name: name, page_url: name, page_result: html ? text : page(text) }));
}

function page(text) {
  const escaped = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  return "<html><body>" + escaped.split(/\n\s*\n/).map(p => "<p>" + p + "</p>").join("") + "</body></html>";
}

/* What is searched, and some questions that the store has pages for. */
async function searched() {
  const response = await fetch("v1/index", { headers: key() });
  const said = await response.json(), rows = said.rows;
  if (response.status === 401) at("keyed").hidden = false;
  if (!response.ok) { at("searched").textContent = response.status === 401 && !at("key").value ? "This endpoint needs a key." : said.detail; return; }
  const what = rows.texts === undefined ? "the texts of this key" : rows.texts + " texts in " + rows.passages + " passages";
  at("searched").textContent = "Searches " + what + ", by recipe " + said.recipe.name + (said.release ? ", release " + said.release : "") + ".";
  at("examples").replaceChildren(...said.examples.map(text => {
    const button = make("button", text);
    button.type = "button";
    button.addEventListener("click", () => {
      if (at("ask").disabled) return;
      at("query").value = text;
      ask();
    });
    return box("li", button);
  }));
  at("stored").hidden = !said.examples.length;
}

function fill() {
  const said = new URLSearchParams(location.hash.slice(1));
  if (said.get("q")) { at("query").value = said.get("q"); at("time").value = said.get("time") || ""; at("own").open = Boolean(at("time").value); }
}

async function ask() {
  stopper = new AbortController();
  at("error").textContent = ""; at("stages").replaceChildren(); at("draft").textContent = "";
  at("result").hidden = true; at("progress").hidden = false; at("ask").disabled = true; at("stop").hidden = false;
  at("status").textContent = "Asking…"; at("stored").open = false; // the answer stands where it is seen
  const headers = { "content-type": "application/json", ...key() };
  const body = { query: at("query").value, time: at("time").value, stream: true, include: ["context", "passages"] };
  const start = performance.now(), tick = () => { at("clock").textContent = ((performance.now() - start) / 1000).toFixed(1) + " s"; };
  tick(); clearInterval(ticking); ticking = setInterval(tick, 100);
  let last = "", outcome = "";
  remember();
  try {
    const own = await documents();
    if (own.length) body.documents = own;
    const response = await fetch("v1/answer", { method: "POST", headers, body: JSON.stringify(body), signal: stopper.signal });
    if (!response.ok) failed(await response.json());
    else await listen(response, (event, data) => {
      last = event;
      if (event === "stage") stage(data);
      else if (event === "draft") at("draft").textContent += data.text;
      else if (event === "answer") { answer(data); outcome = OUTCOMES[data.outcome]; }
      else failed(data);
    });
    if (response.ok && last !== "answer" && last !== "error") at("error").textContent = "The connection ended before the answer.";
    at("status").textContent = last === "answer" ? outcome : "";
  } catch (e) {
    at("status").textContent = stopper.signal.aborted ? "Stopped." : "";
    if (!stopper.signal.aborted) at("error").textContent = "The endpoint cannot be reached.";
  }
  clearInterval(ticking);
  at("ask").disabled = false; at("stop").hidden = true; at("progress").hidden = true;
}
at("form").addEventListener("submit", e => { e.preventDefault(); if (!at("ask").disabled) ask(); });
at("stop").addEventListener("click", () => stopper.abort());
document.addEventListener("keydown", e => { if (e.key === "Escape" && !at("stop").hidden) stopper.abort(); });
at("key").addEventListener("change", () => searched().catch(() => {}));
addEventListener("hashchange", fill);
fill();
searched().catch(() => { at("searched").textContent = "The endpoint cannot be reached."; });
