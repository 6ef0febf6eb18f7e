"use strict";
/* Elements of a page. Data is set as text. No code here or in its callers turns a text into markup; the page's
   policy forbids it too. */

const QUOTE_WORDS = 8; // first words of a quote that a browser searches on the linked page
const at = id => document.getElementById(id);

function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function box(tag, ...parts) {
  const element = document.createElement(tag);
  element.append(...parts.filter(p => p !== null && p !== undefined));
  return element;
}

/* Makes a link. A web address links to the first words of `quote` there. The URL of a document is its path,
   often with its page: "a%20b.pdf#page=3". Browsers open no local file from a page of another host, so it
   links to the passage `to` of this page, and shows `file` as its tooltip. */
function link(url, file, quote, to) {
  if (!url) return make("span", "no address");
  if (!/^https?:\/\//i.test(url)) {
    const named = make(to ? "a" : "span", readable(url).replace(/#page=(\d+)$/, ", p. $1"));
    named.title = file || "";
    if (to) {
      named.href = "#" + to.id;
      named.addEventListener("click", e => { e.preventDefault(); to.closest("details").open = true; to.focus(); });
    }
    return named;
  }
  const a = make("a", url), words = (quote || "").split(/\s+/).slice(0, QUOTE_WORDS).join(" ");
  a.href = url + (words ? (url.includes("#") ? "" : "#") + ":~:text=" + encodeURIComponent(words).replaceAll("-", "%2D") : "");
  a.rel = "noopener noreferrer nofollow";
  a.target = "_blank";
  return a;
}

function readable(url) {
  try { return decodeURIComponent(url); } catch { return url; }
}

function fold(title, ...parts) {
  const details = box("details", make("summary", title));
  details.append(...parts);
  return details;
}

function table(heads, lines) {
  const head = box("tr", ...heads.map(h => { const th = make("th", h); th.scope = "col"; return th; }));
  const body = lines.map(line => box("tr", ...line.map((cell, i) => {
    const td = make(i ? "td" : "th", cell);
    if (!i) td.scope = "row";
    return td;
  })));
  const made = box("table", box("thead", head), box("tbody", ...body));
  made.className = "text";
  return box("div", made);
}
