"""Settings of a head ablation as a user gives them. The command line is generated from this."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wherefrom.analyses.ablation import check_how
from wherefrom.capture.prompts import Prompts, check_bos, check_seed, library_windows, random_tokens, text_windows
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.models.loading import DTYPES


@dataclass(frozen=True, kw_only=True)
class HeadsOptions:
    """Settings of `wherefrom heads`."""

    how: tuple[str, ...] = ()
    """What an ablated head hands on: zero, mean (its mean output) or resample (its output on another example); give it
    again for more. Default: all three for a training run, zero for a checkpoint."""
    layers: str | None = None
    """Attention layers of a checkpoint whose heads are ablated, e.g. 0,3 or 8-11. Default: all."""
    examples: int = 2000
    """Held-out examples of a training run's task."""
    inputs: int = 8
    """Inputs of a checkpoint; error bars shrink with its square root, and time grows with it."""
    length: int = 128
    """Tokens per input of a checkpoint."""
    text: Path | None = None
    """Score a checkpoint on random windows of this text file. Default: the source of Python's standard library."""
    random_tokens: bool = False
    """Score a checkpoint on uniform random tokens instead of text."""
    bos: str = "auto"
    """First token of a checkpoint's inputs: auto (the model's BOS if it names one), on, or off."""
    dtype: str = "float32"
    """Floating-point type of a checkpoint: float64, float32, bfloat16 or float16."""
    device: str = "auto"
    """Where to run: auto, cpu or cuda."""
    seed: int = 0
    """Seed of the inputs and of resampling."""
    out: Path | None = None
    """Folder for the results. Default: a folder of its own under wherefrom-runs/. The same command continues there."""
    trust_remote_code: bool = False
    """Allow the checkpoint to run code of its own."""

    def __post_init__(self) -> None:
        for how in self.how:
            check_how(how)
        if self.examples < 2:
            raise BadInput(f"--examples {self.examples} cannot give an error bar; use at least 2.")
        if self.inputs < 2:
            raise BadInput(f"--inputs {self.inputs} cannot give an error bar; use at least 2.")
        if self.length < 4:
            raise BadInput(f"--length {self.length} is too short; use at least 4.")
        if self.dtype not in DTYPES:
            raise BadInput(f"The dtype '{self.dtype}' is not known; use {', '.join(DTYPES)}.")
        if self.text is not None and self.random_tokens:
            raise BadInput("--text and --random-tokens exclude each other; give one of them.")
        if self.text is not None and not self.text.is_file():
            raise BadInput(f"There is no text file '{self.text}'; check --text.")
        check_bos(self.bos)
        check_seed(self.seed)
        self.parsed_layers()

    def parsed_layers(self) -> list[int] | None:
        """`layers` as numbers."""
        if self.layers is None:
            return None
        found: set[int] = set()
        for part in self.layers.split(","):
            low, dash, high = part.strip().partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()) or (dash and int(high) < int(low)):
                raise BadInput(f"--layers takes numbers and ranges such as 0,3 or 8-11, not '{self.layers}'.")
            found |= set(range(int(low), int(high if dash else low) + 1))
        return sorted(found)

    def prompts(self, decoder: Decoder) -> Prompts:
        """A checkpoint's inputs: text, unless it has no tokenizer or random tokens are asked for."""
        size = (self.inputs, self.length, self.bos, self.seed)
        if self.text is not None:
            return text_windows(decoder, self.text, *size)
        if self.random_tokens or decoder.tokenizer is None:
            return random_tokens(decoder, *size)
        return library_windows(decoder, *size)
