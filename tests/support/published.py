"""Every constant of every recipe, and where it is from: the table of tests/laws/test_published.py.

Numbers are sections of the reference: what the papers [P] and the teams' own code [C] say. "open": no source
says it, and the value is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Rows: TypeAlias = Mapping[str, tuple[Any, str]]
"""stage.field -> value, source. An embedder, reranker, generator or tokenizer by its name."""

TRIM: Rows = {
    "decide.answer_tokens": (75, "7.1 trim"),
    "decide.tokenizer": ("llama-2-tokens", "7.1 trim"),
}


def sampled(stage: str, most: int = 50) -> Rows:
    """How the official baselines sample."""
    return {
        f"{stage}.model": ("llama-3-8b", "1 official baselines"),
        f"{stage}.max_tokens": (most, "1 official baselines"),
        f"{stage}.temperature": (0.1, "1 official baselines"),
        f"{stage}.top_p": (0.9, "1 official baselines"),
    }


VANILLA: Rows = {
    "parse.kinds": (("name",), "1 baseline 1: no page is read"),
    "split.child_chars": (200, "open: nothing is searched"),
    **sampled("generate:llm"),
    "decide.prefer": (("llm",), "1 baseline 1"),
    **TRIM,
}
RAG: Rows = {
    "parse.html": ("lxml", "1 baseline 2"),
    "parse.via": ("fast", "1 baseline 2: equal to get_text"),
    "parse.kinds": (("page",), "1 baseline 2"),
    "split.by": ("sentence", "1 baseline 2"),
    "split.sentence_chars": (1000, "1 baseline 2"),
    "embed.model": ("all-MiniLM-L6-v2", "1 baseline 2"),
    "dense.model": ("all-MiniLM-L6-v2", "1 baseline 2"),
    "dense.top": (100, "open: enough for 20 distinct sentences"),
    "fuse.weights": ({"dense": 1.0}, "1 baseline 2: cosine alone"),
    "fuse.top": (100, "open: enough for 20 distinct sentences"),
    "generate:web.passages": (20, "1 baseline 2: top 20 sentences, deduplicated"),
    "generate:web.layout": ("list", "1 baseline 2"),
    **sampled("generate:web"),
    "decide.prefer": (("web",), "1 baseline 2"),
    **TRIM,
}
CRAG_RAG: Rows = {**RAG, "generate:web.context_chars": (4000, "1 baseline 2")}
CRAG_RAG_KG: Rows = {
    **RAG,
    **sampled("generate:entities", 4096),
    "generate:entities.reply": ("json", "1 baseline 3: flat JSON"),
    "function_calls.form": ("flat", "1 baseline 3"),
    "generate:web.context_chars": (2000, "1 baseline 3: web and graph get 2000 characters each"),
}


def db3(parent: int, overlap: int, kept: int) -> Rows:
    """The web path of db3, with the two sizes and the count that its paper lets vary."""
    return {
        "parse.html": ("html.parser", "2.2 exact call"),
        "parse.via": ("bs4", "2.2 BeautifulSoup"),
        "parse.kinds": (("page", "snippet"), "2.2 exact call: snippet and page text"),
        "split.child_chars": (200, "2.2 children"),
        "split.child_overlap": (50, "2.2 children"),
        "split.parent_chars": (parent, "2.2 parents"),
        "split.parent_overlap": (overlap, "2.2 parents; open for 500 and 1000: a fifth"),
        "split.text_tokens": (12000, "2.2 length guard"),
        "split.tokenizer": ("llama-3-8b", "2.2 length guard: LLM tokens"),
        "embed.model": ("bge-base-en-v1.5", "2.2 retriever"),
        "embed.lower": (True, "2.2 exact call: lower-cased"),
        "shortlist.pages": (5, "2.2 pages read"),
        "shortlist.model": (None, "2.2 pages read: first 5 only"),
        "dense.model": ("bge-base-en-v1.5", "2.2 retriever"),
        "dense.top": (50, "2.2 recall_k"),
        "dense.query": ("{{ text | lower }}", "2.2 exact call: lower-cased"),
        "fuse.weights": ({"dense": 1.0}, "2.2 retriever: dense only"),
        "fuse.top": (50, "2.2 recall_k"),
        "rerank.model": ("bge-reranker-v2-m3", "2.2 reranker"),
        "rerank.top": (kept, "2.2 reranker_k"),
        "rerank.shortcut": (True, "2.2 shortcut"),
        "rerank.candidates": (None, "2.2 reranker: all that were recalled"),
        "rerank.lower": (True, "2.2 exact call: lower-cased"),
        "rerank.query": ("{{ text | lower }}", "2.2 exact call: lower-cased"),
        "generate:web.model": ("llama-3-8b", "2 base model"),
        "generate:web.fill": ({"words": 70}, "2.4 p_basic"),
        "generate:web.context_tokens": (4000, "2.2 budget"),
        "generate:web.tokenizer": (None, "2.2 budget: LLM tokenizer"),
        "generate:web.layout": ("docs", "2.2 context format"),
        "generate:web.lower": (True, "2.2 exact call: lower-cased"),
        "generate:web.max_tokens": (75, "2.4 decoding"),
        "generate:web.temperature": (0.0, "2.4 decoding: greedy"),
        "decide.prefer": (("web",), "2.1 data flow"),
        "decide.lower": (True, "2.4 decoding: output lower-cased"),
        **TRIM,
    }


DB3_DOMAIN: Rows = {
    "generate:domain.model": ("llama-3-8b", "2 base model"),
    "generate:domain.reply": ("label", "2.4 domain"),
    "generate:domain.labels": (("finance", "music", "sports", "movie"), "2.4 domain: first of these found"),
    "generate:domain.default": ("open", "2.4 domain: anything else"),
    "generate:domain.choices": (
        ("movie", "sports", "finance", "music", "other"),
        "open: what its prompt names",
    ),
    "generate:domain.max_tokens": (3, "2.4 domain"),
}
DB3_PUBLIC: Rows = {
    **DB3_DOMAIN,
    "generate:company.model": ("llama-3-8b", "2.4 entity (finance)"),
    "generate:company.max_tokens": (70, "2.4 decoding: entity naming"),
    "facts:public.table": (
        {
            "by": "domain",
            "movie": {"table": "oscar", "by": "year", "triggers": ("oscar", "academy", "best")},
            "music": {"table": "grammy", "by": "year", "triggers": ("grammy", "best")},
            "finance": {
                "table": "stocks",
                "by": "name",
                "triggers": ("share", "pe", "eps", "ratio", "capitalization", "earnings", "market"),
                "levels": ("exact", "tokens"),
                "company": True,
            },
            "else": None,
        },
        "2.3 trigger and lookup",
    ),
    "facts:public.model": ("bge-reranker-v2-m3", "2.3 reranker"),
    "facts:public.top": (10, "2.3 reranker top 10"),
    "generate:known.model": ("llama-3-8b", "2.3 answered from this alone"),
    "generate:known.fill": ({"words": 30}, "2.4 p_basic: public-data answers"),
    "generate:known.first": (("public",), "2.3 answered from this alone"),
    "generate:known.passages": (0, "2.3 answered from this alone"),
    "generate:known.context_tokens": (4000, "2.2 budget"),
    "generate:known.max_tokens": (75, "2.4 decoding"),
    "generate:titles.model": ("llama-3-8b", "2.4 entity (movie)"),
    "generate:titles.fill": ({"words": 50}, "open: token_limit of the entity prompt"),
    "generate:titles.max_tokens": (70, "2.4 decoding: entity naming"),
    "facts:films.table": (
        {"by": "domain", "movie": {"table": "movielens", "by": "name"}, "else": None},
        "2.3 exact match on title or original_title",
    ),
    "generate:web.first": (("films",), "2.2 context format: public-data text first"),
    "decide.prefer": (("known", "web"), "2.3 final if not idk or invalid"),
}
SHELVES = DB3_PUBLIC["facts:public.table"][0]
MEANT = {"levels": ("exact", "tokens", "embedding"), "embedder": "bge-base-en-v1.5", "near": 0.9}
DB3_TOGETHER: Rows = {
    **{k: v for k, v in DB3_PUBLIC.items() if not k.startswith(("generate:known", "decide."))},
    "facts:public.table": (
        {**SHELVES, "finance": {**SHELVES["finance"], **MEANT}},
        "2.3 trigger and lookup, linking strictness varies by domain [P]; open: embedding for companies, .9",
    ),
    "generate:web.first": (("public", "films"), "2.3 combine with web text [P]; 2.2 public-data text first"),
}
DB3_GRAPH: Rows = {
    **DB3_DOMAIN,
    "generate:calls.model": ("llama-3-8b", "2 base model"),
    "generate:calls.reply": ("calls", "2.4 p_gen_API"),
    "generate:calls.max_tokens": (300, "open: eight lines of calls"),
    "generate:kg.model": ("llama-3-8b", "2 base model"),
    "generate:kg.fill": ({"words": 50}, "2.4 KG answer"),
    "generate:kg.first": (("facts",), "2.5 each sentence in <DOC>"),
    "generate:kg.passages": (0, "2.5"),
    "generate:kg.context_tokens": (4000, "2.5 cut at 4000 tokens"),
    "generate:kg.max_tokens": (75, "2.4 KG answer"),
    "demote.recent": (
        ("update", "at the moment", "week", "last", "yesterday", "previous", "late", "today"),
        "2.5 special rule",
    ),
    "decide.prefer": (("kg", "web"), "2.5 the KG answer outranks the web answer"),
}
DB3_TASK3: Rows = {
    **db3(700, 150, 10),
    **DB3_GRAPH,
    "shortlist.model": ("bge-reranker-v2-m3", "2.2 snippet stage"),
    "shortlist.lower": (True, "2.2 snippet stage: page_snippet lower-cased"),
    "shortlist.query": ("{{ text | lower }}", "2.2 snippet stage"),
}
DB3_WEB_ADAPTER: Rows = {"generate:web.adapter": ("db3-web", "2.8 adapters shipped: web answer")}
OURS = "docs/performance.md"
LOCAL: Rows = {
    "parse.html": ("lxml", OURS),
    "parse.via": ("fast", OURS),
    "parse.kinds": (("page", "snippet", "document"), "open"),
    "tokenize.words": ("stems", OURS),
    "split.child_chars": (700, OURS),
    "split.child_overlap": (100, "open"),
    "embed.model": ("all-MiniLM-L6-v2", OURS),
    "dense.model": ("all-MiniLM-L6-v2", OURS),
    "dense.top": (50, "open"),
    "bm25.words": ("stems", OURS),
    "bm25.variant": ("lucene", OURS),
    "bm25.top": (50, "open"),
    "fuse.method": ("weighted", OURS),
    "fuse.weights": ({"dense": 0.5, "bm25": 0.5}, OURS),
    "fuse.norms": ({"dense": "max", "bm25": "max"}, OURS),
    "fuse.missing": ("zero", OURS),
    "fuse.top": (50, "open"),
    "rerank.model": ("minilm-maxsim", OURS),
    "rerank.candidates": (10, OURS),
    "rerank.top": (10, OURS),
    "fuse:final.method": ("weighted", OURS),
    "fuse:final.weights": ({"fuse": 1.0, "rerank": 1.5}, OURS),
    "fuse:final.missing": ("zero", OURS),
    "fuse:final.top": (20, "open"),
    "extract.embedder": ("all-MiniLM-L6-v2", OURS),
    "decide.prefer": (("extract",), "open"),
}
LOCAL_KG: Rows = {
    **LOCAL,
    "match_calls.embedder": ("all-MiniLM-L6-v2", "docs/knowledge-graph.md"),
    "match_calls.least": (0.85, "docs/knowledge-graph.md"),
    "extract.threshold": (0.9, "docs/knowledge-graph.md"),
    "decide.prefer": (("kg", "extract"), "docs/knowledge-graph.md"),
    "decide.lower": (True, "open"),
}
COLLECTION: Rows = {
    **{k: v for k, v in LOCAL.items() if not k.startswith(("extract.", "decide.", "rerank.candidates"))},
    "rerank.top": (50, "open"),
    "dense.top": (150, "4.2 candidate generation: 150 is the best of four on the leaderboard"),
    "bm25.top": (150, "4.2 candidate generation, as for dense"),
    "fuse:final.top": (150, "4.2: the candidates of one recall model; recall at 100 is measured"),
}
COLLECTION_BM25: Rows = {
    **{k: v for k, v in COLLECTION.items() if k.startswith(("parse.", "tokenize.", "split.", "bm25."))},
    "fuse.method": ("weighted", "open: one score, in its own order"),
    "fuse.weights": ({"bm25": 1.0}, "open: one score, in its own order"),
    "fuse.missing": ("zero", "open: every hit has it"),
    "fuse.top": (150, "4.2 candidate generation, as for dense"),
}
OWN: Rows = {
    **LOCAL,
    "stand_alone.model": ("optional-llm", "open: whichever is named"),
    "generate:llm.model": ("optional-llm", "open: whichever is named"),
    "generate:llm.passages": (10, "open"),
    "generate:llm.context_chars": (8000, "open: ten passages of 700 characters, and their marks"),
    "generate:llm.layout": ("list", "open: small models copy marks"),
    "generate:llm.max_tokens": (128, "open: one sentence"),
    "decide.prefer": (("llm", "extract"), "open"),
}
MULTIHOP: Rows = {
    **{k: v for k, v in OWN.items() if k != "generate:llm.passages"},
    "iterate:more.model": ("optional-llm", "open: whichever is named"),
    "iterate:more.rounds": (3, "open"),
    "iterate:more.passages": (5, "open: 15 in the last round"),
    "iterate:more.context_tokens": (3000, "open: 15 passages of 700 characters"),
    "iterate:more.tokens": (12000, "open: three rounds of that, and some thoughts"),
    "iterate:more.max_tokens": (100, "open: a query of 300 characters"),
    "iterate:more.tokenizer": ("minilm-tokens", "open: here whichever model answers"),
    "iterate:more.embedder": ("all-MiniLM-L6-v2", OURS),
    "iterate:more.words": ("stems", OURS),
    "iterate:more.top": (10, "open"),
    "fuse:merged.method": ("rrf", "open: scores of other queries are on other scales"),
    "fuse:merged.weights": ({"final": 1.0, "more-1": 1.0, "more-2": 1.0, "more-3": 1.0}, "open"),
    "fuse:merged.missing": ("zero", "open"),
    "fuse:merged.top": (20, "open"),
    "compress.tokens": (1000, "open: half of what rag shows"),
    "compress.tokenizer": ("minilm-tokens", "open: here whichever model answers"),
    "compress.embedder": ("all-MiniLM-L6-v2", OURS),
    "compress.query": ("{{ text }} {{ replies.more }}", "open: what was searched for counts, too"),
}
HYDE: Rows = {
    **OWN,
    "generate:hyde.model": ("optional-llm", "open: whichever is named"),
    "generate:hyde.reply": ("text", "Gao et al. 2023: whatever it says is searched with"),
    "generate:hyde.max_tokens": (120, "open: two or three sentences"),
    "dense.query": ("{{ replies.hyde or text }}", "Gao et al. 2023; one passage where they take eight"),
}
LISTWISE: Rows = {
    **OWN,
    "listwise.model": ("optional-llm", "open: whichever is named"),
    "listwise.candidates": (10, "open: one window, where Sun et al. 2023 slide over 100"),
    "listwise.top": (10, "open: those that rag shows"),
}
VERIFY: Rows = {
    **OWN,
    "generate:check.model": ("optional-llm", "open: whichever is named"),
    "generate:check.reply": ("label", "open"),
    "generate:check.labels": (("unsupported", "not supported"), "open"),
    "generate:check.default": ("supported", "open: what says neither leaves the answer"),
    "generate:check.passages": (10, "open: those of the answer"),
    "generate:check.context_chars": (8000, "open: as of the answer"),
    "generate:check.layout": ("list", "open: as of the answer"),
    "generate:check.max_tokens": (8, "open: a word"),
    "decide.prefer": (
        {"by": "check", "unsupported": (), "not supported": (), "else": ("llm", "extract")},
        "open: no reply is the answer then",
    ),
}
CONTEXTUAL: Rows = {
    **{k: v for k, v in OWN.items() if k != "embed.model"},
    "embed_contextual.model": ("all-MiniLM-L6-v2", OURS),
    "embed_contextual.writer": ("optional-llm", "open: whichever is named"),
}
LONG_CONTEXT: Rows = {
    **{k: LOCAL[k] for k in LOCAL if k.startswith(("parse.html", "parse.via", "split."))},
    "parse.kinds": (("page", "document"), "open: a snippet says what its page does"),
    "generate:llm.model": ("optional-llm", "open: whichever is named"),
    "generate:llm.context_tokens": (6000, "open: room in 8,192 for another tokenizer's count"),
    "generate:llm.layout": ("list", "open: as of rag"),
    "generate:llm.max_tokens": (128, "open: one sentence"),
    "decide.prefer": (("llm",), "open"),
}


def _bm25(stage: str) -> Rows:
    return {
        f"{stage}.words": ("plain", "open"),
        f"{stage}.variant": ("okapi", "3.2, 9.4 eq. 1"),
        f"{stage}.k1": (None, "3.2: 1.5, the default of okapi"),
        f"{stage}.b": (None, "3.2: 0.75, the default"),
    }


LEVELS = ("exact", "substring", "tokens", "embedding")
WEKNOW: Rows = {
    "parse.html": ("lxml", "3.1 BeautifulSoup"),
    "parse.via": ("fast", "3.1: equal to get_text"),
    "parse.kinds": (("page", "snippet", "name"), "3.1 page_name and page_snippet in the index"),
    "tokenize.words": ("plain", "open"),
    "split.tokens": (500, "3.2 chunk unit"),
    "split.overlap": (0, "3.2: not stated"),
    "split.tokenizer": ("bge-large-tokens", "3.2 dense model"),
    "embed.model": ("bge-large-en-v1.5", "3.2 dense model"),
    "generate:domain.model": ("llama-3-8b", "departure: 3.2 LLM is of 70B"),
    "generate:domain.reply": ("certainty", "3.2 domain certainty"),
    "generate:domain.labels": (("movie", "sports", "finance", "music", "open"), "3.1"),
    "generate:domain.default": ("open", "3.2 domain certainty"),
    "generate:domain.certain": (90.0, "3.2 domain certainty: more than 90 %"),
    "generate:domain.max_tokens": (60, "open"),
    "generate:functions.model": ("llama-3-8b", "departure: 3.2 LLM is of 70B"),
    "generate:functions.reply": ("json", "3.1 structured JSON of function calls"),
    "generate:functions.max_tokens": (600, "open"),
    "kg_query:facts.certain": (
        {"by": "domain", "finance": ("exact",), "sports": ("exact",), "else": LEVELS},
        "3.3 answer only when sure; levels open",
    ),
    "bm25:pages.top": (200, "3.2 K"),
    "bm25:pages.kinds": (("page",), "3.2 K: page chunks"),
    **_bm25("bm25:pages"),
    "bm25:snippets.top": (200, "3.2 K"),
    "bm25:snippets.kinds": (("snippet", "name"), "3.2 K: snippet chunks, names join them"),
    **_bm25("bm25:snippets"),
    "bm25.top": (5, "3.2 M"),
    "bm25.among": (("pages", "snippets"), "3.1 stage 2 on that pool"),
    **_bm25("bm25"),
    "dense.model": ("bge-large-en-v1.5", "3.2 dense model"),
    "dense.top": (20, "3.2 N"),
    "dense.among": (("pages", "snippets"), "3.1 stage 2 on that pool"),
    "fuse.weights": ({"dense": 1.0}, "3.1 dense top N, then reranker"),
    "fuse.top": (20, "3.2 N"),
    "rerank.model": ("bge-reranker-large", "3.2 reranker"),
    "rerank.top": (20, "3.2 N: then reranked"),
    "fuse:merged.method": ("rrf", "3.2 merge: not stated"),
    "fuse:merged.weights": ({"rerank": 1.0, "bm25": 1.0}, "3.1 M + (N, reranked)"),
    "fuse:merged.missing": ("zero", "3.2 merge: not stated"),
    "fuse:merged.top": (25, "3.2 M + N"),
    "generate:web.model": ("llama-3-8b", "departure: 3.2 LLM is of 70B"),
    "generate:web.first": (("facts",), "3.1 final: KG and web information"),
    "generate:web.reply": ("confidence", "3.3 self-assessment"),
    "generate:web.confident": ("high", "3.2 best with high"),
    "generate:web.context_tokens": (6000, "open: room for the first ten, among them all M"),
    "generate:web.max_tokens": (150, "open: an answer of 75 tokens in its JSON"),
    "decide.prefer": (
        {
            "by": "domain",
            "invalid": ("domain",),
            "movie": ("kg", "web"),
            "music": ("kg", "web"),
            "finance": ("kg", "web"),
            "sports": ("web", "kg"),
            "else": ("kg", "web"),
        },
        "3.3 adaptive integration; fast domains open",
    ),
    "decide.lower": (True, "CRAG's answers are lower case"),
    **TRIM,
}
COT_EXAMPLE = (
    "Question: {{ question }}\n{% if explanation %}\nReasoning: {{ explanation }}\n{% endif %}\n"
    "Answer: {{ answer }}"
)
QASPER_LLM: Rows = {
    "parse.kinds": (("name",), "5.1 variant 1: no document is read"),
    "split.child_chars": (1000, "open: nothing is searched"),
    "generate:llm.model": ("llama-3-8b", "departure: 5.1 LLM is ChatGPT 3.5 turbo, which --llm can name"),
    "generate:llm.max_tokens": (256, "open: below the total of 5.1"),
    "decide.prefer": (("llm",), "5.1 the LLM gives the final answer"),
}


def shots(pool: str, tokens: int) -> Rows:
    """The examples of the QASPER pipeline."""
    return {
        "examples.pool": (pool, "5.1 the training data"),
        "examples.choose": ("random", "5.1 k random examples"),
        "examples.top": (6, "5.1 6 few-shot"),
        "examples.seed": (0, "open"),
        "examples.tokens": (tokens, "open: their part of 4,000, 5.1"),
        "examples.tokenizer": ("llama-3-8b", "5.1 LLM tokens"),
    }


QASPER_DOCUMENTS: Rows = {
    **QASPER_LLM,
    "parse.kinds": (("document",), "5.1 documents"),
    "split.child_chars": (1000, "5.1 1000 for QASPER"),
    "split.child_overlap": (200, "5.1 overlap 200"),
    "embed.model": ("instructor-xl", "5.1 instructor-xl embeddings"),
    "generate:query.model": ("llama-3-8b", "departure: 5.1 LLM is ChatGPT 3.5 turbo"),
    "generate:query.reply": ("rewrite", "5.1 a concise query; 6, row 35: falls back to the question"),
    "generate:query.max_tokens": (64, "open: a query is no longer than its question"),
    "dense.model": ("instructor-xl", "5.1 embed"),
    "dense.top": (6, "5.1 top-k = 6 documents"),
    "dense.scope": ("own", "5.1 scope not stated: the paper, with a switch"),
    "dense.query": ("{{ replies.query or text }}", "5.1 the rewritten query is embedded"),
    "fuse.weights": ({"dense": 1.0}, "5.1 dense alone"),
    "fuse.missing": ("fault", "5.1 dense alone: none is missing"),
    "fuse.top": (6, "5.1 top-k = 6 documents"),
    "generate:llm.passages": (6, "5.1 6 documents"),
    "generate:llm.context_tokens": (2000, "open: their part of 4,000, 5.1"),
}
PAPERS: Rows = {
    **LOCAL,
    "parse.html": ("lxml", OURS),
    "parse.kinds": (("document", "page"), "open"),
    "split.child_chars": (1000, "5.1 1000 for QASPER"),
    "split.child_overlap": (200, "5.1 overlap 200"),
    "dense.scope": ("own", "5.1 scope not stated: the paper, with a switch"),
    "bm25.scope": ("own", "as dense"),
}
RECALLED = (
    ("minilm-l6", "all-MiniLM-L6-v2"),
    ("minilm-l12", "all-MiniLM-L12-v2"),
    ("paraphrase", "paraphrase-MiniLM-L12-v2"),
    ("bge-large", "bge-large-both-sides"),
    ("bge-m3", "bge-m3-both-sides"),
    ("gte-large", "gte-large-both-sides"),
)
WORDS = "{{ text }}\n{{ body | clean }}"
INSTRUCTED = "{{ text | colon }} {{ body | clean }}"
ONEWO_RECALL: Rows = {
    "clean.kinds": (("document",), "4.2 cleaning: titles and abstracts"),
    "split.child_chars": (1_000_000, "open: papers are not split"),
    **{
        f"embed{'' if n == 0 else f'#{n + 1}'}.model": (model, "4.2 recall models")
        for n, (_, model) in enumerate(RECALLED[:3])
    },
    **{
        f"embed_document{'' if n == 0 else f'#{n + 1}'}.{field}": (value, source)
        for n, (_, model) in enumerate(RECALLED[3:])
        for field, value, source in (
            ("model", model, "4.2 recall models"),
            ("passage", "{{ title | colon }} {{ abstract }}", "4.2 the colon rule, on the passage side"),
        )
    },
    **{
        f"dense:recall-{name}.{field}": (value, source)
        for name, model in RECALLED
        for field, value, source in (
            ("model", model, "4.2 recall models; 10: the code unions six"),
            ("top", 150, "4.2: 150 is the best of four on the leaderboard"),
            ("query", WORDS if "MiniLM" in model else INSTRUCTED, "4.2 query text"),
        )
    },
}
ONEWO_FIVE: Rows = {
    **ONEWO_RECALL,
    **{
        f"similarity:{name}.{field}": (value, source)
        for name, model in RECALLED
        if name != "paraphrase"
        for field, value, source in (
            ("model", model, "4.2 five recall weights"),
            ("query", WORDS if "MiniLM" in model else INSTRUCTED, "4.2 query text"),
        )
    },
}
KEPT: Rows = {
    "fuse:final.method": ("weighted", "4.2 ensemble at coefficient level"),
    "fuse:final.missing": ("fault", "6, row 33: a missing column fails loudly"),
    "fuse:final.top": (20, "4.2 keep 20"),
}
ANALYSED = "Question: {{ text }}\n\n The Detailed Analysis of the Question: {{ body | clean }}"
ONEWO_QUERIES = {
    "": ANALYSED,
    "-noclean": ANALYSED.replace(" | clean", ""),
    "-response": ANALYSED + "{{ '\n\n AI-Response: ' ~ replies.response if replies.response else '' }}",
    "-keywords": ANALYSED + "{{ '\n\n Keywords: ' ~ replies.keywords if replies.keywords else '' }}",
    "-glm4": ANALYSED + "{{ '\n\n Keywords: ' ~ replies.glm4 if replies.glm4 else '' }}",
}
LLM_EMBEDDERS = {"sfr": "sfr-embedding-mistral", "linq": "linq-embed-mistral"}


def enhanced(into: str, model: str, reply: str, most: int, penalties: bool) -> Rows:
    """What a language model writes about a question, as Onewo samples it."""
    sampling = {"max_tokens": most, "temperature": 0.45, "top_p": 0.7}
    if penalties:
        sampling |= {"frequency_penalty": 0.5, "presence_penalty": 0.6}
    return {
        f"generate:{into}.model": (model, "4.2 LLM enhancement"),
        f"generate:{into}.reply": (reply, "4.2 enhancement, post"),
        **{f"generate:{into}.{n}": (value, "4.2 LLM enhancement") for n, value in sampling.items()},
    }


def ranked(variants: tuple[str, ...]) -> Rows:
    """The LLM embedders over the union, with these queries."""
    return {
        **ONEWO_RECALL,
        **{
            f"embed_document#{n}.{field}": (value, "4.2 ranking with LLM embedders, passage")
            for n, model in enumerate(LLM_EMBEDDERS.values(), 4)
            for field, value in (
                ("model", model),
                ("passage", "Title: {{ title }}\n The Abstract of the Title: {{ abstract }}"),
            )
        },
        **{
            f"similarity:{short}{v}.{field}": (value, "4.2 ranking with LLM embedders, query variants")
            for v in variants
            for short, model in LLM_EMBEDDERS.items()
            for field, value in (("model", model), ("query", ONEWO_QUERIES[v]))
        },
        **KEPT,
    }


QWEN, GLM4 = "qwen1.5-14b-chat-gptq", "glm-4-9b-chat"
PUBLISHED: Mapping[str, Rows] = {
    "onewo-recall": {
        **ONEWO_FIVE,
        **KEPT,
        "fuse:final.weights": (
            {"minilm-l6": 0.18, "minilm-l12": 0.16, "bge-large": 0.24, "gte-large": 0.2, "bge-m3": 0.22},
            "4.2 base recall weights",
        ),
    },
    "onewo-concat": {
        **ONEWO_FIVE,
        **KEPT,
        "fuse:concat.method": ("weighted", "4.2 concat: the product of stacked vectors is a sum"),
        "fuse:concat.weights": (
            dict.fromkeys(("minilm-l6", "minilm-l12", "bge-large", "gte-large", "bge-m3"), 1.0),
            "4.2 concat: five stacked vectors",
        ),
        "fuse:concat.missing": ("fault", "6, row 33: a missing column fails loudly"),
        "fuse:concat.top": (1000, "4.2: above the 832 of the largest union"),
        "fuse:final.weights": ({"concat": 1.0}, "4.2 concat"),
        "fuse:final.norms": ({"concat": "minmax"}, "4.2 concat: min-max per question"),
    },
    "onewo-llm": {
        **ONEWO_FIVE,
        **ranked(tuple(ONEWO_QUERIES)),
        "similarity:unasked.model": ("all-MiniLM-L6-v2", "4.3 random: here a query that says nothing"),
        "similarity:unasked.query": ("paper", "4.3 random: here a query that says nothing"),
        **enhanced("response", QWEN, "text", 2048, penalties=True),
        **enhanced("keywords", QWEN, "keywords", 512, penalties=True),
        **enhanced("glm4", GLM4, "keywords", 2048, penalties=False),
        "fuse:final.weights": (
            {
                **{f"{short}{v}": 0.1 for v in ONEWO_QUERIES for short in LLM_EMBEDDERS},
                **{"linq": 0.15, "sfr-noclean": 0.15},
            },
            "4.2 alternative kept: .1, .15, .15, six of .1 for nine columns; open: the tenth's .1, and which "
            "columns the nine are",
        ),
    },
    "onewo-submitted": {
        **ranked(("", "-noclean", "-response")),
        **enhanced("response", QWEN, "text", 2048, penalties=True),
        "fuse:final.weights": (
            {
                "sfr": 0.144,
                "linq": 0.156,
                "sfr-noclean": 0.15,
                "linq-noclean": 0.15,
                "sfr-response": 0.1,
                "linq-response": 0.1,
            },
            "4.2 final submitted: .3 x (.48, .52), .3 x (.5, .5), .2 x (.5, .5)",
        ),
    },
    "weknow": WEKNOW,
    "weknow-70b": {
        **WEKNOW,
        **{
            f"generate:{n}.model": (
                "llama-3.1-70b-awq",
                "3.2 LLM: AWQ of Llama-3.1-70B-Instruct, as the text says",
            )
            for n in ("domain", "functions", "web")
        },
    },
    "weknow-750": {**WEKNOW, "split.tokens": (750, "3.2 chunk unit: best offline")},
    "weknow-medium": {**WEKNOW, "generate:web.confident": ("medium", "3.2 confidence levels")},
    "weknow-low": {**WEKNOW, "generate:web.confident": ("low", "3.2 confidence levels")},
    "vanilla": VANILLA,
    "crag-baseline": CRAG_RAG,
    "crag-kg-baseline": CRAG_RAG_KG,
    "db3-task1-700": db3(700, 150, 10),
    "db3-task1-2000": db3(2000, 400, 5),
    "db3-task1-500": db3(500, 100, 10),
    "db3-task1-1000": db3(1000, 200, 10),
    "db3-task1-700-together": {**db3(700, 150, 10), **DB3_TOGETHER},
    "db3-task1-700-public": {**db3(700, 150, 10), **DB3_PUBLIC},
    "db3-task1-2000-public": {**db3(2000, 400, 5), **DB3_PUBLIC},
    "db3-task2": {**db3(2000, 400, 5), **DB3_GRAPH},
    "db3-task2-similar": {
        **db3(2000, 400, 5),
        **DB3_GRAPH,
        "examples.embedder": (
            "bge-base-en-v1.5",
            "2.9 similar-example retrieval: not built; here the retriever",
        ),
        "examples.top": (8, "open"),
    },
    "db3-task3": DB3_TASK3,
    "db3-task1-700-tuned": {**db3(700, 150, 10), **DB3_WEB_ADAPTER},
    "db3-task1-2000-tuned": {**db3(2000, 400, 5), **DB3_WEB_ADAPTER},
    "db3-task3-tuned": {
        **DB3_TASK3,
        **DB3_WEB_ADAPTER,
        "generate:domain.adapter": (None, "2.8 domain runs with adapters disabled"),
        "generate:calls.adapter": (
            {"by": "domain", "sports": "db3-calls-sports", "else": "db3-calls"},
            "2.8 adapters shipped: API generation without and including sports",
        ),
        "generate:kg.adapter": (
            {"by": "domain", "sports": "db3-kg-sports", "else": "db3-kg"},
            "2.8 adapters shipped: KG answer without and including sports",
        ),
    },
    "qasper-llm": QASPER_LLM,
    "qasper-fewshot": {**QASPER_LLM, **shots("qasper-train", 1500)},
    "qasper-documents": QASPER_DOCUMENTS,
    "qasper-documents-free": QASPER_DOCUMENTS,
    "qasper-documents-fewshot": {**QASPER_DOCUMENTS, **shots("qasper-train", 1500)},
    "qasper-documents-fewshot-cot": {
        **QASPER_DOCUMENTS,
        **shots("qasper-train-explained", 1300),
        "examples.shown": (COT_EXAMPLE, "5.4 explanations for the few-shot examples, stored"),
        "generate:llm.after": ("Answer:", "5.4 chain of thought: the answer stands behind it"),
        "generate:llm.max_tokens": (400, "open: a sentence before the answer"),
    },
    "papers-local": PAPERS,
    "local": LOCAL,
    "local-kg": LOCAL_KG,
    "collection-local": COLLECTION,
    "collection-bm25": COLLECTION_BM25,
    "rag": OWN,
    "rag-multihop": MULTIHOP,
    "hyde": HYDE,
    "listwise": LISTWISE,
    "verify": VERIFY,
    "contextual": CONTEXTUAL,
    "long-context": LONG_CONTEXT,
}
