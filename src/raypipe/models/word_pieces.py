"""The tokenizer of a BERT, read by the library tokenizers alone: transformers takes five seconds to import.

That library builds it from the vocabulary and a few settings, whatever else tokenizer.json says.
So the file is read here only where it says the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

CLASSES = ("BertTokenizer", "BertTokenizerFast")
SPECIAL = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
MODEL = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}


@dataclass(frozen=True, slots=True)
class WordPieces:
    """What `models.encoder` asks of a tokenizer of transformers, under the names that it has there."""

    backend_tokenizer: Tokenizer
    pad_token_id: int
    model_input_names: Sequence[str] = ("input_ids", "token_type_ids", "attention_mask")


def read_word_pieces(folder: Path) -> WordPieces | None:
    """The tokenizer of a folder; None where transformers might make another one of it."""
    tree, said = _object(folder / "tokenizer.json"), _object(folder / "tokenizer_config.json")
    named = {**said, **_object(folder / "special_tokens_map.json")}
    special = {_content(named.get(f"{t[1:-1].lower()}_token", t)) for t in SPECIAL}
    added = {t["content"] for t in tree.get("added_tokens", ())}
    more = {_content(t) for t in said.get("added_tokens_decoder", {}).values()}
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": said.get("tokenize_chinese_chars", True),
        "strip_accents": said.get("strip_accents"),
        "lowercase": said.get("do_lower_case", True),
    }
    alike = (
        said.get("tokenizer_class") in CLASSES
        and {k: v for k, v in tree.get("model", {}).items() if k != "vocab"} == MODEL
        and tree.get("normalizer") == normalizer
        and tree.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and special == set(SPECIAL) <= set(tree["model"]["vocab"])
        and more <= added <= special
        and not _object(folder / "added_tokens.json")
    )
    if not alike:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pair = tokenizer.encode("a", "a")
    if (pair.tokens[::2], pair.type_ids) != (["[CLS]", "[SEP]", "[SEP]"], [0, 0, 0, 1, 1]):
        return None
    pad: int = tree["model"]["vocab"]["[PAD]"]
    return WordPieces(tokenizer, pad)


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is none."""
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found


def _content(token: str | dict[str, Any]) -> str:
    """The text of a token, however a file writes it."""
    return token if isinstance(token, str) else str(token["content"])
