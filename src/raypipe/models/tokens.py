"""A model's own tokenizer as character spans, for token splits and context budgets.

Reads tokenizer.json with the tokenizers library alone; knows no torch.
"""

from __future__ import annotations

from dataclasses import replace

from tokenizers import Tokenizer

from raypipe.core.protocols import Model, Tokenize
from raypipe.core.records import Span
from raypipe.models import folder


def open_tokenizer(model: Model) -> Tokenize:
    """Spans of the tokens of a text, special tokens omitted, nothing cut. A letter that takes several tokens
    gives each of them its span. Raises as `folder.require`."""
    if model.tokenizer_path:  # a remote model: its weights say "openai:NAME+" and what its tokenizer's are
        weights = model.weights.rpartition("+")[2]
        repo, _, revision = weights.rpartition("@")
        model = replace(
            model, kind="tokenizer", path=model.tokenizer_path, weights=weights, repo=repo, revision=revision
        )
    tokenizer = Tokenizer.from_file(str(folder.require(model) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def spans(text: str) -> list[Span]:
        offsets: list[Span] = tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    return spans
