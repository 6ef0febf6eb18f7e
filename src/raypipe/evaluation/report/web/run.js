/* Script of the page of one run or two: search, filter, sort, open. The whole state is in the address. */

const facts = JSON.parse(at("facts").textContent);
const list = at("rows"), groups = [...list.children], rows = groups.flatMap(g => [...g.children]), number = new Map(facts.ids.map((id, i) => [id, i]));
const facet = new Map(facts.facets.map(f => [f.name, f])), value = new Map(facts.numbers.map(n => [n.name, n.of]));
const inGroup = groups.length ? groups[0].children.length : 1;
let state = read(), placed = rows.map((_, i) => i), shown = placed, words = null, sorted = "", tried = new Set();

function read() {
  const h = new URLSearchParams(location.hash.slice(1));
  return { q: h.get("q") || "", t: h.get("t") || "", s: h.get("s") || "", src: h.get("src") || "", f: h.getAll("f"), r: h.get("r") || "" };
}

/* Changes the state. Typing replaces the address; any other change adds an entry to the browser's history. */
function go(change, typed) {
  Object.assign(state, change, { r: facts.run });
  const h = new URLSearchParams();
  for (const [name, said] of Object.entries(state)) for (const one of [said].flat()) if (one) h.append(name, one);
  history[typed ? "replaceState" : "pushState"](null, "", "#" + h);
  apply();
}

function matches() {
  const filters = new Map();
  for (const f of state.f) {
    const cut = f.indexOf(":"), name = f.slice(0, cut), found = facet.get(name);
    const code = found ? found.values.indexOf(f.slice(cut + 1)) : -1; // -1 is the code of rows without a value
    if (!filters.has(name)) filters.set(name, { of: found ? found.of : [], codes: new Set() });
    filters.get(name).codes.add(code < 0 ? NaN : code);
  }
  const source = state.src ? facts.sources.names.findIndex(n => n === state.src || state.src.startsWith(n)) : null;
  const search = state.t.toLowerCase().split(/\s+/).filter(Boolean);
  if (search.length && !words) words = rows.map(r => r.textContent.toLowerCase());
  return i => search.every(w => words[i].includes(w))
    && [...filters.values()].every(f => f.codes.has(f.of[i]))
    && (source === null || facts.sources.of[i].includes(source));
}

function apply() {
  const ok = matches();
  if (sorted !== state.s) order();
  rows.forEach((row, i) => { const yes = ok(i); if (row.hidden === yes) row.hidden = !yes; });
  shown = placed.filter(i => !rows[i].hidden);
  sizes();
  for (const select of menus) {
    const set = state.f.find(f => f.startsWith(select.name + ":"));
    select.value = set === undefined ? "" : set.slice(select.name.length + 1);
    select.classList.toggle("on", set !== undefined);
    if (set !== undefined && select.closest("#more")) at("more").open = true;
  }
  if (at("search").value !== state.t) at("search").value = state.t;
  at("sort").value = state.s;
  at("source").hidden = !state.src;
  at("source").textContent = "source " + state.src.slice(0, 12) + " \u00d7";
  at("other").hidden = !state.r || state.r === facts.run;
  count();
  open(number.get(state.q));
}

function by(key) {
  const sign = state.s.startsWith("-") ? -1 : 1;
  return (a, b) => (key[a] === null) - (key[b] === null) || sign * (key[a] - key[b]) || a - b;
}

function order() {
  sorted = state.s;
  const key = value.get(sorted.replace(/^-/, ""));
  placed = rows.map((_, i) => i);
  if (key) placed.sort(by(key));
  groups.forEach((g, n) => g.replaceChildren(...placed.slice(n * inGroup, (n + 1) * inGroup).map(i => rows[i])));
}

/* Estimates the height of each group, since the browser lays out only groups near the window. */
function sizes() {
  const left = groups.map(() => 0);
  placed.forEach((i, place) => { if (!rows[i].hidden) left[Math.floor(place / inGroup)]++; });
  groups.forEach((g, n) => { g.hidden = !left[n]; g.style.containIntrinsicBlockSize = 3.2 * left[n] + "rem"; });
}

/* Shows the number of filtered questions, and their mean or difference. */
async function count() {
  const filtered = shown.length < rows.length, said = shown.length + " of " + rows.length + " questions";
  at("count").textContent = said;
  if (!filtered || !shown.length || !facts.lead) return;
  tried.add(state.f.join() + state.t + state.src);
  const looked = " \u00b7 picked after looking; " + tried.size + (tried.size === 1 ? " filter tried" : " filters tried");
  const scored = shown.filter(i => value.get("value")[i] !== null), now = shown;
  if (!scored.length) return;
  if (!facts.pair) {
    const mean = scored.reduce((sum, i) => sum + value.get("value")[i], 0) / scored.length;
    at("count").textContent = said + ": " + facts.lead + " " + mean.toFixed(3) + " of " + scored.length + " scored" + looked;
    return;
  }
  let found;
  try { found = await asked("paired", { rows: scored }); } catch (e) { if (now === shown) at("count").textContent = said + ": " + e.message; return; }
  if (now !== shown) return;
  const ends = found.interval ? " [" + found.interval.map(signed).join(", ") + "]" : "";
  at("count").textContent = said + ": " + arrow(found.difference) + " " + facts.lead + " " + signed(found.difference) + ends
    + ", p " + found.p.toPrecision(2) + ", " + found.up + " up, " + found.down + " down" + looked;
}

const signed = x => (x > 0 ? "+" : "") + x.toFixed(3);
const arrow = x => x > 0 ? "\u2191" : x < 0 ? "\u2193" : "=";

/* Returns the server's reply. Throws an error with the reason if it refuses or cannot be reached. */
async function asked(where, sent) {
  const how = sent && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(sent) };
  const reply = await fetch(where, how).catch(() => { throw new Error("raypipe view cannot be reached. Start it again"); });
  const said = await reply.json();
  if (!reply.ok) throw new Error(said.detail);
  return said;
}

/* Returns the row of a question in each run; fetches it once. */
const fetched = new Map();
function question(i) {
  if (!fetched.has(i)) {
    const sides = asked("question/" + i);
    sides.catch(() => fetched.delete(i)); // the next click asks again
    fetched.set(i, sides);
  }
  return fetched.get(i);
}

let opened = null;
async function open(i) {
  if (opened === (i ?? null)) return;
  if (opened !== null) { rows[opened].classList.remove("open"); rows[opened].querySelector(".detail")?.remove(); }
  opened = i ?? null;
  if (opened === null) return;
  const row = rows[i], place = make("div", "Opening\u2026", "detail");
  if (row.hidden) { row.hidden = false; sizes(); }
  row.classList.add("open");
  row.append(place);
  let q;
  try { q = await question(i); } catch (e) { place.textContent = e.message; return; }
  if (opened !== i) return;
  const state = side => { const f = facet.get(facts.pair ? "AB"[side] : "verdict"); return f?.values[f.of[i]]; };
  const sides = q.map((one, side) => detail(one, facts.runs[side], state(side), facts.pair ? null : mark, facts.labels));
  if (facts.pair) { place.className = "detail sides"; sides.forEach((s, side) => s.prepend(make("h3", "AB"[side] + ": " + (q[side].answer ?? "failed")))); }
  place.replaceChildren(...sides);
  const seen = row.getBoundingClientRect();
  list.style.setProperty("--bar", at("bar").offsetHeight + "px");
  if (seen.top < 0 || seen.bottom > innerHeight) row.scrollIntoView({ block: "start" });
}

async function mark(q, label) {
  let said;
  try { said = await asked("label", { id: q.id, label }); } catch (e) { return e.message; }
  const found = facet.get("person");
  if (found) { found.of[number.get(q.id)] = found.values.indexOf(label); choices(); }
  return "written to " + said.file;
}

/* Makes a menu for each facet; menus of the data's own labels are folded. */
let menus = [];
function choices() {
  menus = facts.facets.filter(f => f.values.length > 1).map(f => {
    const select = make("select"), sizes = f.values.map((_, code) => f.of.filter(x => x === code).length);
    select.name = f.name;
    select.setAttribute("aria-label", f.name);
    const all = make("option", f.name + ": all");
    all.value = "";
    select.append(all, ...f.values.map((v, code) => { const o = make("option", f.name + ": " + v + " (" + sizes[code] + ")"); o.value = v; return o; }));
    const set = state.f.find(x => x.startsWith(f.name + ":"));
    select.value = set === undefined ? "" : set.slice(f.name.length + 1);
    select.addEventListener("change", () => go({ f: [...state.f.filter(x => !x.startsWith(f.name + ":")), ...(select.value ? [f.name + ":" + select.value] : [])] }));
    return select;
  });
  const labels = menus.filter(m => facet.get(m.name).label);
  at("labels").replaceChildren(...labels);
  at("facets").replaceChildren(...menus.filter(m => !labels.includes(m)));
  at("more").hidden = !labels.length;
}

function sorts() {
  const first = make("option", facts.pair ? "changed first" : "order of the run");
  first.value = "";
  at("sort").append(first, ...facts.numbers.flatMap(n => ["-", ""].map(sign => {
    const o = make("option", n.name + (sign ? ", largest first" : ", smallest first"));
    o.value = sign + n.name;
    return o;
  })));
}

/* Saves the filtered rows as a file. A cell that a spreadsheet would compute gets an apostrophe in front. */
function csv() {
  const cell = x => { const t = /^[=+\-@\t]/.test(x) && isNaN(x) ? "'" + x : String(x); return /[",\n\r]/.test(t) ? '"' + t.replaceAll('"', '""') + '"' : t; };
  const heads = [...rows[0]?.querySelectorAll("[data-c]") || []].map(e => e.dataset.c);
  const lines = [["id", ...heads, ...facts.facets.map(f => f.name), ...facts.numbers.map(n => n.name)]];
  for (const i of shown) lines.push([facts.ids[i], ...[...rows[i].querySelectorAll("[data-c]")].map(e => e.textContent.trim()),
    ...facts.facets.map(f => f.values[f.of[i]] ?? ""), ...facts.numbers.map(n => n.of[i] ?? "")]);
  const a = make("a");
  a.href = URL.createObjectURL(new Blob([lines.map(l => l.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" }));
  a.download = "questions-" + facts.run + ".csv";
  a.click();
  URL.revokeObjectURL(a.href);
}

function step(by) {
  const visible = shown.map(i => rows[i]);
  const now = visible.indexOf(document.activeElement.closest(".row"));
  visible[Math.min(Math.max(now + by, 0), visible.length - 1)]?.querySelector("a.q").focus();
}

const KEYS = {
  "/": () => at("search").focus(), "j": () => step(1), "k": () => step(-1), "?": () => at("help").showModal(),
  "Escape": () => {
    const row = rows[opened];
    if (state.q) { go({ q: "" }); row.querySelector("a.q").focus(); } else if (state.t) go({ t: "" }, true);
  },
};
document.addEventListener("keydown", e => {
  const typing = /INPUT|SELECT|TEXTAREA/.test(e.target.tagName);
  if (e.ctrlKey || e.metaKey || e.altKey || at("help").open || (typing && e.key !== "Escape") || !(e.key in KEYS)) return;
  e.preventDefault();
  if (typing) e.target.blur();
  KEYS[e.key]();
});
list.addEventListener("click", e => {
  const q = e.target.closest("a.q"), line = e.target.closest(".line");
  if (!q && !line || e.ctrlKey || e.metaKey || String(getSelection())) return;
  e.preventDefault();
  const id = facts.ids[rows.indexOf(e.target.closest(".row"))];
  go({ q: state.q === id ? "" : id });
});
at("search").addEventListener("input", e => go({ t: e.target.value }, true));
at("sort").addEventListener("change", e => go({ s: e.target.value }));
at("source").addEventListener("click", () => go({ src: "" }));
at("clear").addEventListener("click", () => go({ t: "", f: [], src: "", q: "" }));
at("csv").addEventListener("click", csv);
at("keys").addEventListener("click", () => at("help").showModal());
at("close").addEventListener("click", () => at("help").close());
addEventListener("popstate", () => { state = read(); apply(); });
choices();
sorts();
at("bar").hidden = false;
apply();
