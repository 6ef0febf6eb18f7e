"""An encoder on a CPU: no padding, and oneDNN's products; the numbers are those of the plain network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raypipe.models.catalog import Catalog


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["bert", "xlm-r"])
def test_texts_in_one_row_get_the_hidden_states_that_each_gets_alone(
    entries: Callable[..., Catalog], tiny: Callable[[str, bool], Path], texts: list[str], shape: str
) -> None:
    import torch
    from transformers import AutoModel

    from raypipe.models.encoder import Encoder

    path = str(tiny(shape, False))
    entry = {"kind": "embedder", "loader": "flagembedding", "dim": 32, "pooling": "mean", "max_tokens": 64}
    encoder = Encoder.load(entries(e={"path": path, **entry}).model("e"), "cpu")
    plain = AutoModel.from_pretrained(path).eval()
    encodings = encoder.copy_of_tokenizer().encode_batch([*texts, *reversed(texts), texts[0]])
    seen = []
    for rows, states, mask in encoder.hidden(encodings):
        assert mask.all(), "nothing is padding"
        for row, hidden in zip(rows, states, strict=True):
            with torch.inference_mode():
                alone = plain(torch.tensor([encodings[row].ids])).last_hidden_state[0]
            assert np.allclose(hidden, alone, atol=1e-5)
            seen.append(row)
    assert sorted(seen) == list(range(len(encodings)))


@pytest.mark.slow
def test_a_packed_layer_gives_the_numbers_of_the_layer_for_any_number_of_rows() -> None:
    import torch

    from raypipe.models.bert import PackedLinear

    torch.manual_seed(1)
    layer = torch.nn.Linear(48, 80)
    for gelu, after in ((False, torch.nn.Identity()), (True, torch.nn.GELU())):
        ours = PackedLinear(layer, gelu)
        for rows in ((1, 1), (3, 700), (2048,)):
            x = torch.randn(*rows, 48)
            with torch.inference_mode():
                assert torch.allclose(ours(x), after(layer(x)), atol=1e-5)


@pytest.mark.slow
def test_a_berts_tokenizer_is_read_as_transformers_reads_it(
    tiny: Callable[[str, bool], Path], texts: list[str]
) -> None:
    from transformers import AutoTokenizer

    from raypipe.models.bert import read_word_pieces

    folder = tiny("bert", False)
    ours, theirs = read_word_pieces(folder), AutoTokenizer.from_pretrained(folder)
    assert ours is not None and ours.pad_token_id == theirs.pad_token_id
    assert ours.model_input_names == tuple(theirs.model_input_names)
    for text in (*texts, "ÜBER  a\u200b[MASK]x", "x" * 101, ""):
        found = ours.backend_tokenizer.encode(text, "two")
        assert (found.ids, found.type_ids) == tuple(
            theirs(text, "two")[n] for n in theirs.model_input_names[:2]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("tokenizer_config.json", {"pad_token": "<pad>"}),
        ("tokenizer.json", {"normalizer": None}),
        ("tokenizer.json", {"post_processor": None}),
    ],
)
def test_a_tokenizer_that_transformers_would_make_otherwise_is_left_to_it(
    tiny: Callable[[str, bool], Path], tmp_path: Path, file: str, change: dict[str, object]
) -> None:
    from raypipe.models.bert import read_word_pieces

    here = shutil.copytree(tiny("bert", False), tmp_path / "m")
    (here / file).write_text(json.dumps({**json.loads((here / file).read_text()), **change}))
    assert read_word_pieces(here) is None


@pytest.mark.slow
def test_no_class_of_transformers_is_loaded_for_a_bert_on_a_cpu(tiny: Callable[[str, bool], Path]) -> None:
    code = f"""
import sys
from pathlib import Path
from raypipe.models import load
from raypipe.models.catalog import read
entry = {{"kind": "embedder", "loader": "flagembedding", "dim": 32, "pooling": "mean", "max_tokens": 64}}
model = read({{"e": {{**entry, "path": {str(tiny("bert", False))!r}}}}}, Path("models.yaml")).model("e")
load.open_model(model, "transformers", "cpu").embed(["one"], "passage")
assert "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
