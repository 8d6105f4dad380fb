"""Small Transformers of the lab for tests: random, with queries and keys sharpened so that logits matter."""

from __future__ import annotations

from typing import Any

import torch

from wherefrom.models.toy import ToyTransformer
from wherefrom.models.toy_config import ToyConfig

ENCODINGS = [
    "none", "sinusoidal", "learned", "relative-table", "t5", "alibi", "kerple", "fire", "cope", "deberta", "rope",
    "rope:rotary_dim=8", "rope:heads=0/2", "xpos", "pope", "mla", "published-mla", "rope+sinusoidal",
    "rope@0-1;alibi@2;t5@3",
]  # fmt: skip


def toy(encoding: str = "rope", seed: int = 0, sharpen: float = 6.0, **settings: Any) -> ToyTransformer:
    """A random model in float64 and evaluation mode, logits with a standard deviation near 1."""
    chosen = {"vocabulary": 97, "classes": 97, "max_length": 64, "d_model": 64, "heads": 4, "layers": 2, "d_ff": 96}
    torch.manual_seed(seed)
    model = ToyTransformer(ToyConfig(**{**chosen, "encoding": encoding, "causal": True, **settings})).double().eval()
    with torch.no_grad():
        for block in model.body.blocks:
            block.attention.query.weight *= sharpen
            for parameter in block.attention.encoding.parameters():
                if parameter.ndim:
                    parameter.normal_(std=0.2)  # tables that start at zero would hide their encoding
    return model


def ids(inputs: int = 3, length: int = 24, seed: int = 5) -> torch.Tensor:
    found = torch.randint(3, 97, (inputs, length), generator=torch.Generator().manual_seed(seed))
    found[:, 0] = 1
    return found


def logits_of(model: ToyTransformer, token_ids: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """Logits per layer before the mask, by the explicit path: (batch head query key)."""
    found: list[torch.Tensor] = []

    def watch(_: int, logits: torch.Tensor) -> torch.Tensor:
        found.append(logits.detach())
        return logits

    with torch.no_grad():
        model(token_ids, watch=watch, **options)
    return found
