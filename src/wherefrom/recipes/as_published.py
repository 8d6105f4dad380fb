"""The paper's table with the faults of the published code, each of them a named option of ours."""

from __future__ import annotations

from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import setting

ARMS = {
    "rope": "rope:pairing=interleaved+sinusoidal:layout=concatenated",
    "mla": "learned:initial_std=0+published-mla",
    "alibi": "alibi:form=symmetric,slopes=published",
    "none": "none",
    "sinusoidal": "sinusoidal:layout=concatenated",
    "random": "learned:initial_std=1",
    "relative": "relative-table",
}
"""Name of an arm in the published code: what it is (published-code rows 4 to 7)."""
TASKS: dict[ScaleName, dict[str, str]] = {
    "quick": {"distance": "distance:vocabulary=64,max_between=20,side=8,published_collisions=true"},
    "laptop": {
        "distance": "distance:vocabulary=64,max_between=30,side=12,published_collisions=true",
        "count": "count",
    },
    "published": {"distance": "distance:published_collisions=true", "count": "count"},
}


def _cells(scale: ScaleName) -> list[Cell]:
    return [
        Cell(
            {"task": task, "encoding": arm},
            setting(
                scale, "count" if spelled == "count" else spelled, encoding, memory_keys=True, published_padding=True
            ),
        )
        for task, spelled in TASKS[scale].items()
        for arm, encoding in ARMS.items()
    ]


AS_PUBLISHED = Recipe(
    "as-published",
    "The paper's table with what its code does: padding attended to, keys and values from the input embedding, RoPE "
    "with sines on the embeddings, an MLA that does not rotate, ambiguous labels.",
    _cells,
)
