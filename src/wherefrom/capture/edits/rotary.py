"""Edits of the rotary frequencies: `rope=ntk:<factor>|linear:<factor>|theta:<base>|off`.

The frequencies are read from the running module and scaled there, so an edit acts on what the model really uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.capture.edits.base import Edit, RunInputs
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.suggest import suggestion

KINDS = ("ntk", "linear", "theta", "off")


@dataclass(frozen=True)
class RotaryFrequencies(Edit):
    """Other rotary frequencies for one run."""

    kind: str = "off"
    """`ntk` (base times factor^(d/(d-2))), `linear` (positions divided), `theta` (another base) or `off`."""
    amount: float = 1.0
    """Factor or base."""

    def check(self, decoder: Decoder, length: int, first_tokens: Tensor) -> None:
        """The model must have rotary tables that do not recompute themselves."""
        modules = decoder.rotary_modules()
        if not modules:
            raise BadInput(f"'{self.text}': the family '{decoder.family}' has no rotary frequencies to edit.")
        for module in modules:
            kind = getattr(module, "rope_type", "default")
            kinds = set(kind.values()) if isinstance(kind, dict) else {kind}
            if kinds & {"dynamic", "longrope"}:
                raise BadInput(
                    f"'{self.text}': this model recomputes its rotary frequencies from the input length "
                    f"({', '.join(sorted(kinds))}), so an edit of them would be overwritten."
                )

    def scaled(self, frequencies: Tensor) -> Tensor:
        """The edited frequencies, from the module's own, in radians per token."""
        bands = frequencies.numel()
        index = torch.arange(bands, dtype=torch.float64, device=frequencies.device)
        old = frequencies.double()
        if self.kind == "ntk":
            # base' = base * f^(d/(d-2)) with d = 2 * bands leaves the fastest band and divides the slowest by f.
            new = old * self.amount ** (-index / max(bands - 1, 1))
        elif self.kind == "linear":
            new = old / self.amount
        elif self.kind == "theta":
            new = self.amount ** (-index / bands)
        else:
            new = torch.zeros_like(old)
        return new.to(frequencies.dtype)

    @contextmanager
    def installed(self, decoder: Decoder, inputs: RunInputs) -> Iterator[None]:
        """Swap each frequency buffer for the run; the original tensor object comes back."""
        saved = []
        try:
            for module in decoder.rotary_modules():
                for name, buffer in list(module.named_buffers(recurse=False)):
                    if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
                        saved.append((module, name, buffer))
                        module._buffers[name] = self.scaled(buffer)
            yield
        finally:
            for module, name, buffer in saved:
                module._buffers[name] = buffer


def rotary(text: str, value: str) -> RotaryFrequencies:
    """`rope=ntk:<factor>|linear:<factor>|theta:<base>|off`."""
    kind, _, amount = value.partition(":")
    if kind not in KINDS:
        closest = suggestion(f"rope={kind}", [f"rope={known}" for known in KINDS]) or "."
        raise BadInput(f"'{text}' is not known; rope takes ntk:<factor>, linear:<factor>, theta:<base> or off{closest}")
    if kind == "off":
        if amount:
            raise BadInput(f"'{text}': rope=off takes no value.")
        return RotaryFrequencies(text, "off")
    try:
        number = float(amount)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise BadInput(f"'{text}' needs a positive number, e.g. rope={kind}:{'10000' if kind == 'theta' else '4'}.")
    return RotaryFrequencies(text, kind, number)
