"""Settings of a logit split as a user gives them. The command line is generated from this."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wherefrom.capture.edits import parse_edit
from wherefrom.capture.prompts import Prompts, check_bos, check_seed, random_tokens, text_windows
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.models.loading import DTYPES


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """Settings of `wherefrom split`."""

    length: int = 512
    """Tokens per input."""
    inputs: int = 64
    """Number of inputs; error bars shrink with its square root."""
    text: Path | None = None
    """Take inputs from random windows of this text file; without it: uniform random tokens."""
    bos: str = "auto"
    """First token: auto (the model's BOS if it names one), on, or off."""
    edit: tuple[str, ...] = ()
    """An edit to run beside the unedited model, e.g. bos=mean, window=64 or rope=ntk:4; give it again for more. Edits
    joined by a comma act together. `wherefrom list edits` shows all."""
    rows: int | None = None
    """Most query positions to look at, evenly spaced, against all keys. Default: all up to 128 tokens, else 64."""
    dtype: str = "float32"
    """Floating-point type of the model: float64, float32, bfloat16 or float16."""
    device: str = "auto"
    """Where to run: auto, cpu or cuda."""
    seed: int = 0
    """Seed of the inputs and of random edits."""
    batch: int | None = None
    """Inputs per forward pass. Default: chosen by length. It changes numbers by rounding only."""
    out: Path | None = None
    """Folder for the results. Default: a folder of its own under wherefrom-runs/. The same command continues there."""
    trust_remote_code: bool = False
    """Allow the checkpoint to run code of its own."""

    def __post_init__(self) -> None:
        if self.length < 4:
            raise BadInput(f"--length {self.length} is too short to split; use at least 4.")
        if self.inputs < 3:
            raise BadInput(f"--inputs {self.inputs} cannot tell position from noise; use at least 3.")
        if self.rows is not None and self.rows < 2:
            raise BadInput(f"--rows {self.rows} cannot show how logits vary; use at least 2.")
        if self.batch is not None and self.batch < 1:
            raise BadInput(f"--batch {self.batch} runs nothing; use at least 1.")
        if self.dtype not in DTYPES:
            raise BadInput(f"The dtype '{self.dtype}' is not known; use {', '.join(DTYPES)}.")
        check_bos(self.bos)
        check_seed(self.seed)
        # What needs no model is checked before one is loaded.
        for edit in self.edit:
            parse_edit(edit)
        if self.text is not None and not self.text.is_file():
            raise BadInput(f"There is no text file '{self.text}'; check --text.")

    def prompts(self, decoder: Decoder) -> Prompts:
        """The inputs these settings ask for."""
        if self.text is not None:
            return text_windows(decoder, self.text, self.inputs, self.length, self.bos, self.seed)
        return random_tokens(decoder, self.inputs, self.length, self.bos, self.seed)
