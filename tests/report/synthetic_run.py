"""A run folder as `wherefrom trace` writes it, with made-up but plausible numbers whose parts sum to their wholes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

EDITS = ("none", "bos=mean", "rope=ntk:4", "window=64")
RANGES = ("32:64", "64:128", "128:256", "256:512")
OFFSETS = (1, 2, 3, 4, 6, 8, 12, 16, 24)

SCHEMA = {
    "analysis": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
    "n": pl.Int64,
    "stderr": pl.Float64,
    "edit": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    "offset": pl.Int64,
    "query_range": pl.String,
    "token": pl.Int64,
}

# How strongly each edit acts on shape, mask, first token and rest, per octave of queries.
_EFFECTS: dict[str, tuple[float, float, float, float]] = {
    "none": (1.0, 1.0, 1.0, 1.0),
    "bos=mean": (0.33, 0.75, 1.0, 0.95),
    "rope=ntk:4": (0.7, 1.1, 0.8, 0.65),
    "window=64": (3.0, 0.0, 0.0, 6.0),
}


class Synthetic:
    """Writes one run folder. `layers`, `heads`, `edits` and `learned_sink` say what kind."""

    def __init__(
        self,
        layers: int = 30,
        heads: int = 9,
        edits: tuple[str, ...] = EDITS,
        *,
        seed: int = 0,
        inputs: int = 64,
        learned_sink: bool = False,
        vocabulary: int = 2000,
        strength: float = 1.0,
        offsets: tuple[int, ...] = OFFSETS,
    ) -> None:
        self.layers, self.heads, self.edits = layers, heads, edits
        self.random = np.random.default_rng(seed)
        self.inputs, self.learned_sink, self.vocabulary, self.strength = inputs, learned_sink, vocabulary, strength
        self.offsets = offsets
        self.rows: list[pl.DataFrame] = []

    def frame(self, **columns: Any) -> None:
        """Add rows; scalars are repeated."""
        given = {"n": self.inputs, "edit": "none"} | columns
        height = max((len(value) for value in given.values() if isinstance(value, np.ndarray)), default=1)
        full = {
            name: pl.Series(
                name, given[name] if isinstance(given.get(name), np.ndarray) else [given.get(name)] * height, dtype
            )
            for name, dtype in SCHEMA.items()
        }
        self.rows.append(pl.DataFrame(full))

    def parts(self, edit: str, octave: int) -> dict[str, np.ndarray]:
        """Leak metrics per layer and head."""
        depth = np.arange(self.layers)[:, None] / max(1, self.layers - 1)
        spread = self.random.lognormal(0, 0.8, (self.layers, self.heads))
        effect = _EFFECTS.get(edit, (0.6, 1.0, 1.0, 0.8))
        early = 0.07 * self.strength / 8.0 ** min(octave, 2)
        shape = effect[0] * early * np.sin(np.pi * np.clip(depth * 2.2, 0, 1)) * spread * 2.2 * (depth > 0)
        mask = effect[1] * 0.025 * (0.4 + 2.5 * np.exp(-6 * depth)) * spread
        first = -effect[2] * 0.006 * depth * spread
        rest = effect[3] * 0.012 * depth * self.random.lognormal(0, 0.7, (self.layers, self.heads))
        noise = self.random.normal(0, 2e-4, (self.layers, self.heads))
        sink = -0.004 * depth * spread if self.learned_sink else np.zeros((self.layers, self.heads))
        shape, rest = shape + noise, rest - noise * (depth > 0)
        level = mask + first + rest + sink
        table = {
            "attention_leak": shape + level,
            "shape_leak": shape,
            "level_leak": level,
            "mask": mask,
            "first_token": first,
            "rest": rest,
            "residual": shape + first + rest + sink,
            "raw_logit_leak": (shape + 0.3 * rest) * (14 if edit == "window=64" else 1.1),
            "raw_denominator_leak": (level + 0.3 * rest) * (12 if edit == "window=64" else 0.9),
            "raw_interaction": -0.2 * rest,
            "count": np.full((self.layers, self.heads), 0.05 / 4.0**octave),
        }
        if self.learned_sink:
            table["learned_sink"] = sink
        return table

    def leak(self) -> None:
        """Leak rows at every level of averaging, and the removed fractions."""
        layer, head = (grid.ravel() for grid in np.mgrid[: self.layers, : self.heads])
        base: dict[tuple[str, str], np.ndarray] = {}
        for octave, query_range in enumerate(RANGES):
            for edit in self.edits:
                table = self.parts(edit, octave)
                where: dict[str, Any] = {"edit": edit, "query_range": query_range}
                for metric, value in table.items():
                    common = {"analysis": "leak", "metric": metric, "unit": "nats2"} | where
                    self.frame(value=value.ravel(), stderr=self.error(value).ravel(), layer=layer, head=head, **common)
                    mean = value.mean(1)
                    self.frame(value=mean, stderr=self.error(mean) / 2, layer=np.arange(self.layers), **common)
                    self.frame(value=mean.mean(), stderr=abs(mean.mean()) * 0.05 + 1e-5, **common)
                    if edit == "none":
                        base[metric, query_range] = mean
                    else:
                        self.removed(metric, where, mean, base[metric, query_range])
                    if metric in ("attention_leak", "shape_leak", "raw_logit_leak", "raw_interaction"):
                        self.by_offset(common, value, layer, head)
                share = {"analysis": "leak", "metric": "residual_share", "unit": "share"} | where
                per_layer = table["residual"].mean(1) / table["attention_leak"].mean(1)
                self.frame(value=per_layer, stderr=np.full(self.layers, 0.03), layer=np.arange(self.layers), **share)
                self.frame(value=table["residual"].mean() / table["attention_leak"].mean(), stderr=0.021, **share)

    def error(self, value: np.ndarray) -> np.ndarray:
        """A plausible standard error."""
        return np.abs(value) * 0.1 + 2e-4

    def removed(self, metric: str, where: dict[str, Any], mean: np.ndarray, base: np.ndarray) -> None:
        """1 − V_edit / V_base, averaged and per layer (infinite where the base is 0, as real tables can be)."""
        common = {"analysis": "removed", "metric": metric, "unit": "share"} | where
        with np.errstate(divide="ignore", invalid="ignore"):
            self.frame(value=1 - mean / base, stderr=np.full(self.layers, 0.1), layer=np.arange(self.layers), **common)
            fraction = 1 - mean.mean() / base.mean()
        self.frame(value=fraction, stderr=abs(fraction) * 0.05 + 0.02, **common)

    def by_offset(self, common: dict[str, Any], value: np.ndarray, layer: np.ndarray, head: np.ndarray) -> None:
        """Per offset at every level of averaging; the mean over offsets is `value`."""
        slope = np.linspace(0.6, 1.4, len(self.offsets))
        for factor, offset in zip(slope, self.offsets, strict=True):
            scaled = value * factor
            self.frame(
                value=scaled.ravel(), stderr=self.error(scaled).ravel(), layer=layer, head=head, offset=offset, **common
            )
            mean = scaled.mean(1)
            self.frame(value=mean, stderr=self.error(mean), layer=np.arange(self.layers), offset=offset, **common)
            self.frame(value=mean.mean(), stderr=abs(mean.mean()) * 0.06, offset=offset, **common)

    def sinks(self) -> None:
        """Sink rows per head and averaged."""
        layer, head = (grid.ravel() for grid in np.mgrid[: self.layers, : self.heads])
        for edit in self.edits:
            reading = self.random.beta(0.5, 1.2, self.layers * self.heads) * np.clip(layer / 4, 0.02, 1)
            common = {"analysis": "sinks", "edit": edit}
            per_head = {"layer": layer, "head": head} | common
            self.frame(metric="sink_attention", unit="share", value=reading, stderr=reading * 0.02, **per_head)
            self.frame(metric="value_norm_ratio", unit="ratio", value=0.05 + 0.3 * (1 - reading), **per_head)
            self.frame(metric="sink_constancy", unit="cosine", value=1 - 0.2 * (1 - reading), **per_head)
            if self.learned_sink:
                self.frame(metric="learned_sink_share", unit="share", value=reading / 2, **per_head)
            self.frame(metric="sink_attention", unit="share", value=float(reading.mean()), stderr=0.01, **common)
            self.frame(metric="sink_heads", unit="heads", value=float((reading >= 0.3).sum()), **common)

    def first_token(self) -> None:
        """The trajectory at position 0."""
        depth = np.arange(self.layers + 1)
        for edit in self.edits:
            jump = 900 if edit == "none" else 300
            ratio = 1 + jump * (1 / (1 + np.exp(-(depth - 3) * 2))) * (1 - (depth == self.layers) * 0.9)
            common = {"analysis": "first_token", "edit": edit}
            self.frame(metric="norm", unit="norm", value=ratio * 3.1, layer=depth, **common)
            self.frame(metric="norm_ratio", unit="ratio", value=ratio, stderr=ratio * 0.02, layer=depth, **common)
            likeness = np.ones(self.layers + 1) if edit == "none" else 0.2 + 0.8 / (1 + np.exp(-(depth - 2.0)))
            self.frame(metric="similarity", unit="cosine", value=likeness, layer=depth, **common)
            self.frame(metric="closed_system_error", unit="activation", value=3.1e-5, **common)

    def atlas(self) -> None:
        """The sink score of every token."""
        tokens = np.arange(self.vocabulary)
        score = np.clip(self.random.beta(8, 5, self.vocabulary), 0, 1)
        self.frame(analysis="atlas", metric="sink_score", unit="share", value=score, token=tokens)
        self.frame(analysis="atlas", metric="norm_ratio", unit="ratio", value=1 + 900 * score, token=tokens)
        self.frame(analysis="atlas", metric="sink_tokens", unit="tokens", value=float((score >= 0.3).sum()))

    def table(self, analyses: tuple[str, ...] = ("leak", "sinks", "first_token", "atlas")) -> pl.DataFrame:
        """All rows of the named analyses."""
        for analysis in analyses:
            getattr(self, analysis)()
        return pl.concat(self.rows)

    def manifest(self, name: str = "SmolLM2-135M-Instruct") -> dict[str, Any]:
        """What a finished run says about itself."""
        edits = [edit for edit in self.edits if edit != "none"]
        flags = " ".join(f"--edit {edit}" for edit in edits)
        return {
            "wherefrom": "0.1.0",
            "versions": {"python": "3.11.2", "torch": "2.13.0", "transformers": "5.24.0"},
            "command": f"wherefrom trace smollm2 --length 512 --inputs {self.inputs} {flags} --out demo",
            "python": f"import wherefrom as wf\n\nmodel = wf.load('smollm2')\n"
            f"inputs = wf.random_tokens(inputs={self.inputs}, length=512)\n"
            f"trace = wf.trace(model, inputs, edits={edits})\ntrace.save('demo')",
            "created": "2026-06-20T12:00:00Z",
            "model": {
                "source": "smollm2",
                "name": name,
                "family": "llama",
                "layers": self.layers,
                "heads": self.heads,
                "kv_heads": max(1, self.heads // 3),
                "head_dim": 64,
                "encoding": "rope",
                "vocabulary": self.vocabulary,
            },
            "inputs": self.inputs,
            "length": 512,
            "first_token": {"id": 1, "text": "<|im_start|>", "is_bos": True},
            "text": None,
            "input_token_ids": [[1, 523, 9, 77, 1024, 5, 88], [1, 12, 801, 44, 3, 990, 17]],
            "seed": 0,
            "device": "cpu",
            "dtype": "float32",
            "backend": "fused",
            "batch": 8,
            "groups": 16,
            "offsets": {query_range: list(self.offsets) for query_range in RANGES},
            "bins": {"32:64": 32, "64:128": 64, "128:256": 64, "256:512": 64},
            "query_ranges": list(RANGES),
            "edits": list(self.edits),
            "parity": {"max_abs": 2.1e-5, "tolerance": 1e-3, "prompt_tokens": 24},
            "closure_max_abs": 3.4e-9,
            "excluded_rows": 0,
            "warnings": [],
            "timings": {edit: 9.3 + i for i, edit in enumerate(self.edits)},
            "seconds": 41.2,
            "atlas": {"tokens": {str(token): f" word{token}" for token in range(self.vocabulary)}},
        }


def write_run(folder: Path, rows: pl.DataFrame, manifest: dict[str, Any]) -> Path:
    """Write the two files of a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(folder / "rows.parquet")
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def small_run(folder: Path, analyses: tuple[str, ...] = ("leak",), **options: object) -> Path:
    """A run of a tiny model, for tests that do not look at numbers."""
    run = Synthetic(4, 3, ("none", "bos=mean"), vocabulary=60, **options)  # type: ignore[arg-type]
    return write_run(folder, run.table(analyses), run.manifest())


def default_run(folder: Path) -> Path:
    """The run that most tests read."""
    run = Synthetic()
    return write_run(folder, run.table(), run.manifest())


if __name__ == "__main__":
    import sys

    default_run(Path(sys.argv[1]))
