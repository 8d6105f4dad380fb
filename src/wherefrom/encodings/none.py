"""No positional encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wherefrom.encodings.base import Encoding, EncodingConfig


@dataclass(frozen=True, slots=True)
class NoneConfig(EncodingConfig):
    """No settings."""

    name: ClassVar[str] = "none"


class NoEncoding(Encoding):
    """No positional encoding (NoPE): whatever the model knows of position comes from its mask.

    Formula: s(i,j) = q_i·k_j / √d

    Source: Kazemnejad et al., arXiv 2305.19466
    """
