"""Decoders as embedders: the last token's vector, whatever side a batch is padded on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypipe.core.errors import ConfError
from raypipe.models import load
from raypipe.models.catalog import Catalog

pytestmark = pytest.mark.slow  # torch takes seconds to import

Entries = Callable[..., Catalog]
SHAPES = ("Mistral", "Qwen3")
ENTRY = {"kind": "embedder", "loader": "last-token", "dim": 32, "max_tokens": 60}


def decoder(folder: Path, shape: str, texts: list[str], ends: bool = True) -> Path:
    """A folder with a tiny decoder, whose tokenizer ends every text with a mark, as these models' do. That of
    Mistral's shape has no padding token. `ends`: tokenizer.json says so, too."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if ends else "<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    pad = {} if shape == "Mistral" else {"pad_token": "</s>"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **pad
    ).save_pretrained(folder)
    said = folder / "tokenizer_config.json"
    said.write_text(json.dumps({**json.loads(said.read_text()), "add_eos_token": True}))
    torch.manual_seed(1)
    made: dict[str, Any] = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    net = getattr(transformers, f"{shape}Model")(getattr(transformers, f"{shape}Config")(**made))
    net.save_pretrained(folder)
    return folder


def flipped(encoder: Any, batch: Any) -> Any:
    """The same texts padded on the left."""
    from dataclasses import replace

    ids, mask = batch.ids.clone().fill_(encoder.pad), batch.mask.clone().zero_()
    for row, n in enumerate(batch.mask.sum(1).tolist()):
        ids[row, -n:], mask[row, -n:] = batch.ids[row, :n], 1
    return replace(batch, ids=ids, mask=mask)


@pytest.mark.parametrize("shape", SHAPES)
def test_left_and_right_padding_and_no_padding_give_the_same_vector(
    entries: Entries, tmp_path: Path, texts: list[str], shape: str
) -> None:
    import torch

    from raypipe.models.encoder import pool

    decoder(tmp_path / "m", shape, texts)
    task = "Instruct: find the paper\nQuery: "
    model = entries(m={**ENTRY, "path": "m", "query_instruction": task}).model("m")
    assert model.pooling == "last"
    opened: Any = load.open_model(model, "flagembedding", "cpu")
    together = opened.embed(texts, "passage")
    alone = np.concatenate([opened.embed([t], "passage") for t in texts])
    assert np.abs(together - alone).max() < 1e-5
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert np.abs(together[0] - together[1]).max() > 0.01, "texts differ"
    opened._encoder.budget = 10_000  # one batch of all lengths
    encodings = opened._tokenizer.encode_batch(texts)
    [batch] = opened._encoder.batches(encodings)
    assert 0 in batch.mask, "some are padded"
    for some in (batch, flipped(opened._encoder, batch)):
        hidden = opened._encoder.run(some).last_hidden_state
        vectors = torch.nn.functional.normalize(pool(hidden, some.mask, "last"), dim=-1).numpy()
        assert np.abs(vectors - together[batch.rows]).max() < 1e-5
    assert np.abs(opened.embed(texts[:1], "query") - opened.embed([task + texts[0]], "passage")).max() < 1e-6
    long = " ".join(texts * 3)
    assert opened.embed([long], "passage").shape == (1, 32)
    cut = opened._tokenizer.encode(long)
    assert len(cut.ids) == 60 and cut.tokens[-1] == "</s>", "the mark that is pooled stays"


def test_it_gives_the_numbers_of_sentence_transformers(
    entries: Entries, tmp_path: Path, texts: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import models as modules

    folder = decoder(tmp_path / "m", "Qwen3", texts)
    transformer = modules.Transformer(str(folder), max_seq_length=60)
    theirs = SentenceTransformer(modules=[transformer, modules.Pooling(32, pooling_mode="lasttoken")])
    expected = theirs.encode(texts, normalize_embeddings=True)
    ours = load.open_model(entries(m={**ENTRY, "path": "m"}).model("m"), "transformers", "cpu")
    assert np.abs(ours.embed(texts, "passage") - expected).max() < 1e-5


def test_a_folder_that_pools_otherwise_is_refused(entries: Entries, tmp_path: Path, texts: list[str]) -> None:
    folder = decoder(tmp_path / "m", "Mistral", texts)
    (folder / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},'
        ' {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'
    )
    (folder / "1_Pooling").mkdir()
    pooled = folder / "1_Pooling/config.json"
    pooled.write_text('{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}')
    with pytest.raises(ConfError, match=r"pooling is last in models.yaml, but its folder pools by mean"):
        load.present(entries(m={**ENTRY, "path": "m"}).model("m"))
    pooled.write_text('{"word_embedding_dimension": 32, "pooling_mode_lasttoken": true}')
    load.present(entries(m={**ENTRY, "path": "m"}).model("m"))
    with pytest.raises(ConfError, match="takes it from its folder"):
        entries(m={**ENTRY, "path": "m", "pooling": "mean"}).model("m")


def test_the_mark_that_a_folder_only_asks_for_is_put_behind_each_text(
    entries: Entries, tmp_path: Path, texts: list[str]
) -> None:
    """Whose tokenizer.json has no end mark, and tokenizer_config.json says that it is to be added."""
    from raypipe.models.token_arrays import TokenMaker, arrays_of

    decoder(tmp_path / "whole", "Mistral", texts)
    shutil.copytree(tmp_path / "whole", tmp_path / "m")
    file = tmp_path / "m/tokenizer.json"
    tree = json.loads(file.read_text())
    assert tree["post_processor"]["single"].pop() == {"SpecialToken": {"id": "</s>", "type_id": 0}}
    file.write_text(json.dumps(tree))
    catalog = entries(m={**ENTRY, "path": "m"}, whole={**ENTRY, "path": "whole"})
    model = catalog.model("m")
    opened: Any = load.open_model(model, "transformers", "cpu")
    expected: Any = load.open_model(catalog.model("whole"), "transformers", "cpu")
    assert np.abs(opened.embed(texts, "passage") - expected.embed(texts, "passage")).max() < 1e-6
    long = " ".join(texts * 3)
    tokens = opened._tokenizer.encode(long)
    assert len(tokens.ids) == 60 and tokens.tokens[0] == "<s>" and tokens.tokens[-1] == "</s>"
    [array] = arrays_of(TokenMaker(model).table([long], "passage")).values()
    assert array.ids.tolist() == tokens.ids, "made by another process, to the same ids"
    assert np.abs(opened.embed_tokens([array]) - opened.embed([long], "passage")).max() < 1e-6


def test_a_tokenizer_without_the_mark_that_is_pooled_is_refused(
    entries: Entries, tmp_path: Path, texts: list[str]
) -> None:
    from raypipe.models.token_arrays import TokenMaker

    folder = decoder(tmp_path / "m", "Mistral", texts, ends=False)
    said = folder / "tokenizer_config.json"
    said.write_text(said.read_text().replace('"add_eos_token": true', '"add_eos_token": false'))
    model = entries(m={**ENTRY, "path": "m"}).model("m")
    for opens in (TokenMaker, lambda m: load.open_model(m, "transformers", "cpu")):
        with pytest.raises(ConfError, match=r"the token that ends a text, .* found '<s> a' for 'a'"):
            opens(model)


def test_an_entry_without_the_prompt_of_its_folder_is_refused(
    entries: Entries, tmp_path: Path, texts: list[str]
) -> None:
    folder = decoder(tmp_path / "m", "Mistral", texts)
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "Query: "}}')
    with pytest.raises(ConfError, match=r"its folder puts 'Query: ' before a query, but its entry nothing"):
        load.present(entries(m={**ENTRY, "path": "m"}).model("m"))
    load.present(entries(m={**ENTRY, "path": "m", "query_instruction": "Instruct: "}).model("m"))


def test_an_embedder_of_first_tokens_needs_a_tokenizer_that_begins_texts_with_its_mark(
    entries: Entries, tmp_path: Path, texts: list[str]
) -> None:
    from dataclasses import replace

    from tokenizers import Tokenizer

    from raypipe.models.token_arrays import require_pooled_mark

    folder = decoder(tmp_path / "m", "Mistral", texts)
    model = replace(entries(m={**ENTRY, "path": "m"}).model("m"), pooling="cls")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    require_pooled_mark(model, tokenizer)
    tree = json.loads(tokenizer.to_str())
    tree["post_processor"] = None
    with pytest.raises(ConfError, match=r"pooling cls takes the vector of the token that begins a text"):
        require_pooled_mark(model, Tokenizer.from_str(json.dumps(tree)))
