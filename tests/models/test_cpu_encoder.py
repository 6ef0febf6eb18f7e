"""An encoder on a CPU: no padding, and oneDNN's products; the numbers are those of the plain network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raypipe.models.catalog import Catalog


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
    for states in encoder.hidden(encodings):
        assert states.mask.all(), "nothing is padding"
        for row, hidden in zip(states.rows, states.hidden, strict=True):
            with torch.inference_mode():
                alone = plain(torch.tensor([encodings[row].ids])).last_hidden_state[0]
            assert np.allclose(hidden, alone, atol=1e-5)
            seen.append(row)
    assert sorted(seen) == list(range(len(encodings)))


@pytest.mark.slow
def test_a_packed_layer_gives_the_numbers_of_the_layer_for_any_number_of_rows() -> None:
    import torch

    from raypipe.models.cpu_linear import PackedLinear

    torch.manual_seed(1)
    layer = torch.nn.Linear(48, 80)
    for gelu, after in ((False, torch.nn.Identity()), (True, torch.nn.GELU())):
        ours = PackedLinear(layer, gelu)
        for rows in ((1, 1), (3, 700), (2048,)):
            x = torch.randn(*rows, 48)
            with torch.inference_mode():
                assert torch.allclose(ours(x), after(layer(x)), atol=1e-5)
