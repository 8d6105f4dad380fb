"""What `import wherefrom as wf` offers.

import wherefrom as wf

model = wf.load("smollm2")
trace = wf.trace(model, wf.random_tokens(inputs=64, length=512), edits=["bos=mean"])
trace.table()
trace.save("out")
wf.report("out")
wf.split(model, wf.random_tokens(inputs=64, length=512)).table()

run = wf.train(task="distance:max_between=20", encoding="rope", out="run")
wf.heads("run").table()
wf.sweep("laptop", scale="quick", out="laptop").table()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wherefrom.analyses.ablation import HOWS
from wherefrom.capture import prompts as _prompts
from wherefrom.capture.prompts import Prompts
from wherefrom.capture.selfcheck import parity_check
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder
from wherefrom.models.loading import load as _load
from wherefrom.models.toy_store import is_toy
from wherefrom.recipes import check_scale, find_recipe
from wherefrom.training.config import TrainConfig
from wherefrom.training.loop import Training
from wherefrom.training.loop import train as _train
from wherefrom.workflows.facts import Facts
from wherefrom.workflows.facts import facts as _facts
from wherefrom.workflows.heads import Heads
from wherefrom.workflows.heads import checkpoint_heads as _checkpoint_heads
from wherefrom.workflows.heads import trained_heads as _trained_heads
from wherefrom.workflows.split import Split
from wherefrom.workflows.split import split as _split
from wherefrom.workflows.sweep import Sweep
from wherefrom.workflows.sweep import sweep as _sweep
from wherefrom.workflows.trace import Trace
from wherefrom.workflows.trace import trace as _trace

Inputs = Callable[[Decoder], Prompts]
"""A way to draw inputs once the model is known."""


def load(model: Any, dtype: str = "float32", device: str = "auto", **options: Any) -> Decoder:
    """A model ready to be traced, checked against its stock path.

    `model`: `smollm2`, a hub id, a local folder, a GGUF file, or a loaded Hugging Face model object, which is used as
    it is and never changed. Options: `tokenizer`, `trust_remote_code`. Raises BadInput for what cannot be loaded,
    observed or reproduced.
    """
    return parity_check(_load(model, dtype, device, **options))


def random_tokens(inputs: int = 64, length: int = 512, bos: str = "auto", seed: int = 0) -> Inputs:
    """Uniform random ordinary tokens behind the BOS; see `capture.prompts.random_tokens`."""
    return lambda decoder: _prompts.random_tokens(decoder, inputs, length, bos, seed)


def text_windows(file: str | Path, inputs: int = 64, length: int = 512, bos: str = "auto", seed: int = 0) -> Inputs:
    """Random windows of a text file; see `capture.prompts.text_windows`."""
    return lambda decoder: _prompts.text_windows(decoder, file, inputs, length, bos, seed)


def given_tokens(token_ids: Any, attention_mask: Any = None, seed: int = 0) -> Inputs:
    """Token ids as they are, nothing added; see `capture.prompts.given_tokens`."""
    return lambda decoder: _prompts.given_tokens(decoder, token_ids, attention_mask, seed)


def trace(model: Any, inputs: Inputs | None = None, edits: Sequence[str] = (), **options: Any) -> Trace:
    """Trace where absolute position comes from; see `workflows.trace.trace` for the options.

    `model`: what `load` returned, or anything `load` takes. `inputs`: `random_tokens(...)` by default.
    """
    decoder = model if isinstance(model, Decoder) else load(model)
    if not decoder.parity:
        parity_check(decoder)
    return _trace(decoder, (inputs or random_tokens())(decoder), edits, **options)


def split(model: Any, inputs: Inputs | None = None, edits: Sequence[str] = (), **options: Any) -> Split:
    """Split attention logits into content and position; see `workflows.split.split` for the options.

    `model`: what `load` returned, or anything `load` takes. `inputs`: `random_tokens(...)` by default.
    """
    decoder = model if isinstance(model, Decoder) else load(model)
    if not decoder.parity:
        parity_check(decoder)
    return _split(decoder, (inputs or random_tokens())(decoder), edits, **options)


def facts(model: Any, **options: Any) -> Facts:
    """What each layer of a checkpoint does with position; see `workflows.facts.facts` for the options.

    `model`: what `load` returned, or anything `load` takes, families that cannot be traced included.
    """
    return _facts(model, **options)


def train(out: str | Path | None = None, device: str = "auto", **settings: Any) -> Training:
    """Train one small Transformer on a synthetic task; settings as in `training.config.TrainConfig`.

    With `out` the run is kept, and continued if it was interrupted. Raises BadInput for settings that do not fit.
    """
    return _train(TrainConfig(**settings), out, device)


def sweep(recipe: str, out: str | Path, scale: str | None = None, seeds: int | None = None, **options: Any) -> Sweep:
    """Run a recipe: many small trainings side by side; see `workflows.sweep.sweep` for the options.

    `scale`: `quick`, `laptop` or `published`, by default what the recipe is meant for; `seeds`: per cell. Workers are
    processes: call it from a script that guards its main part with `if __name__ == "__main__":`. Raises BadInput for
    an unknown recipe or scale.
    """
    found = find_recipe(recipe)
    chosen = check_scale(scale or found.scale)
    return _sweep(found.seeded(chosen, seeds), out, found.name, **options)


def heads(model: Any, inputs: Inputs | None = None, how: Sequence[str] | None = None, **options: Any) -> Heads:
    """What is lost without each head; see `workflows.heads` for the options.

    `model`: a folder of `train`, scored by its task's accuracy, or what `load` returned or takes, scored by its
    next-token loss on `inputs`. `how`: `zero`, `mean`, `resample`; by default all for a training run, `zero` for a
    checkpoint, on which each takes as long.
    """
    if isinstance(model, str | Path) and is_toy(model):
        if inputs is not None:
            raise BadInput(f"'{model}' is a training run, scored on its own task; leave `inputs` out.")
        return _trained_heads(model, HOWS if how is None else how, **options)
    decoder = model if isinstance(model, Decoder) else load(model)
    chosen = (inputs or _text_if_possible)(decoder)
    return _checkpoint_heads(decoder, chosen, ("zero",) if how is None else how, **options)


def _text_if_possible(decoder: Decoder) -> Prompts:
    draw = _prompts.random_tokens if decoder.tokenizer is None else _prompts.library_windows
    return draw(decoder, 8, 128)
