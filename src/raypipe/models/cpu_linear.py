"""Linear layers of a float32 network on a CPU with AVX: oneDNN's, which torch brings, with packed weights.

torch's own product is MKL's, which keeps to AVX2 on a chip that is not Intel's.
"""

from __future__ import annotations

from typing import Any

import torch

ROWS = 1024  # tokens of a batch, for which weights are laid out; any number of them is right


class PackedLinear(torch.nn.Module):  # type: ignore[misc]  # torch's types are not read
    """A linear layer, and the GELU behind it if `gelu`. Its weights are not to be moved or changed."""

    def __init__(self, linear: torch.nn.Linear, gelu: bool = False) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = linear.bias
        self._after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, *self._after)
        return found


def usable() -> bool:
    """Whether this machine has packed layers."""
    return torch.backends.mkldnn.is_available() and "AVX" in torch.backends.cpu.get_cpu_capability()


def pack(net: Any) -> None:
    """Puts packed layers in the place of a network's own, where this machine has them."""
    from transformers.activations import GELUActivation

    if not usable():
        return
    for module in list(net.modules()):
        act: Any = getattr(module, "intermediate_act_fn", None)  # of BERT and its kin, behind `dense`
        gelu = type(act) is GELUActivation and act.act is torch.nn.functional.gelu
        for name, layer in list(module.named_children()):
            if type(layer) is torch.nn.Linear and layer.weight.dtype == torch.float32:
                setattr(module, name, PackedLinear(layer, gelu and name == "dense"))
        if gelu and type(module.dense) is PackedLinear:
            module.intermediate_act_fn = torch.nn.Identity()
