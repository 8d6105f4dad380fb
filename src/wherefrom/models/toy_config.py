"""Settings of the small Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from wherefrom.encodings import parse_per_head
from wherefrom.errors import BadInput
from wherefrom.settings import Settings, check_choice, check_count, check_number

Readout = Literal["mean", "last", "tokens"]
Attention = Literal["mha", "mla"]
Weights = Literal["random", "identity"]


@dataclass(frozen=True, slots=True)
class ToyConfig(Settings):
    """Settings of `ToyTransformer`. The published quirks (`memory_keys`, `published_padding`) are off by default."""

    name: ClassVar[str] = "toy"

    vocabulary: int
    """Number of token ids."""
    classes: int
    """Number of answers (for a language model: the vocabulary)."""
    max_length: int = 128
    """Longest input in tokens; encodings with one row per position have this many."""
    d_model: int = 128
    """Width of the residual stream."""
    heads: int = 8
    """Query heads per layer."""
    kv_heads: int | None = None
    """Key/value heads per layer; None: as many as query heads."""
    layers: int = 3
    """Number of blocks."""
    d_ff: int = 256
    """Width of the hidden layer of each feed-forward part; 0 leaves that part out."""
    encoding: str = "rope"
    """Positional encoding, as `wherefrom list encodings` names it; `rope@0-3;none@4-7` gives heads different ones."""
    attention: Attention = "mha"
    """`mha`, or `mla`: keys and values are made from a narrow latent vector (DeepSeek-V2)."""
    latent_dim: int | None = None
    """Width of MLA's latent vector; None: a quarter of `d_model`."""
    causal: bool = False
    """Hide keys after the query."""
    window: int | None = None
    """Number of keys a query sees at most, its own included; needs `causal`."""
    readout: Readout = "mean"
    """What the answer is read from: the mean over tokens, the last token, or each token."""
    bos: int | None = None
    """Token id that starts each input of a language model; None: there is none."""
    dropout: float = 0.0
    """Dropout on what each attention and feed-forward part adds."""
    head_dropout: float = 0.0
    """Probability that a whole head's output is zeroed during training."""
    memory_keys: bool = False
    """Keys and values of every layer come from the un-normalised input embedding (code of arXiv 2505.13027)."""
    published_padding: bool = False
    """Padding takes part in attention and in the mean (code of arXiv 2505.13027)."""
    weights: Weights = "random"
    """How the blocks start: `random`, or `identity`, where queries, keys and values are the normalised stream itself,
    the stack without parameters of Kim et al., arXiv 2509.21042. It needs `d_ff=0`, and is not meant to be trained."""

    def __post_init__(self) -> None:
        for key in ("vocabulary", "classes", "max_length", "d_model", "heads", "layers"):
            check_count(self.name, key, getattr(self, key))
        check_count(self.name, "d_ff", self.d_ff, least=0)
        for key in ("kv_heads", "latent_dim", "window"):
            if getattr(self, key) is not None:
                check_count(self.name, key, getattr(self, key))
        check_choice(self.name, "attention", self.attention, get_args(Attention))
        check_choice(self.name, "readout", self.readout, get_args(Readout))
        check_choice(self.name, "weights", self.weights, get_args(Weights))
        if self.weights == "identity" and (self.d_ff or self.attention != "mha" or self.key_heads != self.heads):
            raise BadInput(
                "`weights=identity` is for plain attention alone; set `d_ff=0` and leave out MLA and groups."
            )
        for key in ("dropout", "head_dropout"):
            check_number(self.name, key, getattr(self, key), least=0.0)
            if getattr(self, key) >= 1:
                raise BadInput(f"`{key}` of `toy` is {getattr(self, key)}, but it must be below 1; change it.")
        if self.d_model % self.heads:
            raise BadInput(f"A width of {self.d_model} does not divide into {self.heads} heads; change one.")
        if self.heads % self.key_heads:
            raise BadInput(f"{self.heads} query heads cannot share {self.key_heads} key heads evenly; change one.")
        if self.window is not None and not self.causal:
            raise BadInput("A sliding window needs the causal mask; set `causal=true`.")
        parse_per_head(self.encoding, self.heads)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.d_model // self.heads

    @property
    def key_heads(self) -> int:
        """Number of key/value heads."""
        return self.kv_heads or self.heads
