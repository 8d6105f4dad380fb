"""The commands of the lab: train one model, run a recipe, ablate heads."""

from __future__ import annotations

import json as json_module
import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wherefrom.errors import BadInput, CheckFailed
from wherefrom.progress import Progress
from wherefrom.training.config import TrainConfig
from wherefrom.workflows.heads_options import HeadsOptions

RUNS = "wherefrom-runs"


def _command() -> str:
    """This command line, for the manifest."""
    return shlex.join(["wherefrom", *sys.argv[1:]])


def train(
    *,
    options: Annotated[TrainConfig, Parameter(name="*")] = TrainConfig(),  # noqa: B008
    out: Path | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Train one small Transformer on a synthetic task and score it on held-out data.

    Examples:

        wherefrom train --task distance:max_between=20,side=3,shift=20,same_length=true --encoding rope

        wherefrom train --task count --encoding alibi --steps 2000 --seed 3

        wherefrom train --encoding "rope@0-3;none@4-7" --json

    Parameters
    ----------
    out
        Folder for the results. Default: a folder of its own under wherefrom-runs/. The same command continues there.
    device
        Where to run: auto, cpu or cuda.
    json
        Print a JSON summary and nothing else on standard output.
    """
    from wherefrom.report import build_report
    from wherefrom.report.sweep_text import print_training
    from wherefrom.training.loop import fingerprint
    from wherefrom.training.loop import train as run_training

    folder = out or Path(RUNS) / f"train-{fingerprint(options)[:8]}"
    found = run_training(options, folder, device, Progress(), _command())
    page = build_report(folder)
    if json:
        print(json_module.dumps(found.summary(), allow_nan=False))
        return
    print_training(found.summary())
    print(f"\nRows:   {folder / 'rows.parquet'}\nModel:  {folder}\nReport: {page}")


def sweep(
    recipe: str,
    /,
    *,
    quick: bool = False,
    scale: str | None = None,
    seeds: int | None = None,
    workers: int | None = None,
    out: Path | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Run a recipe: many small trainings side by side, with a table over seeds at the end.

    Examples:

        wherefrom sweep laptop --quick

        wherefrom sweep laptop

        wherefrom sweep deposit --quick --seeds 5 --out deposit

        wherefrom sweep published --device cuda

    Parameters
    ----------
    recipe
        Which experiment; `wherefrom list recipes` shows all.
    quick
        The smallest scale; the same as --scale quick.
    scale
        quick, laptop or published. Default: what the recipe is meant for.
    seeds
        Seeds per cell. Default: what the recipe says.
    workers
        Processes, one core each. Default: one per core.
    out
        Folder for the results. Default: wherefrom-runs/<recipe>-<scale>. The same command continues there.
    device
        Where to run: auto, cpu or cuda.
    json
        Print a JSON summary and nothing else on standard output.
    """
    from wherefrom.recipes import check_scale, find_recipe
    from wherefrom.report import build_report
    from wherefrom.report.sweep_text import print_sweep
    from wherefrom.workflows.sweep import sweep as run_sweep

    found = find_recipe(recipe)
    chosen = check_scale(scale or ("quick" if quick else found.scale))
    if quick and chosen != "quick":
        raise BadInput(f"--quick and --scale {chosen} exclude each other; give one of them.")
    count = found.seeds[chosen] if seeds is None else seeds
    folder = out or Path(RUNS) / f"{found.name.replace('+', '-')}-{chosen}-{count}"
    progress = Progress()
    result = run_sweep(found.seeded(chosen, count), folder, found.name, workers, device, progress, _command())
    page = build_report(folder)
    if json:
        from wherefrom.report.sweep_summary import sweep_summary

        print(json_module.dumps(sweep_summary(result.rows, result.manifest), allow_nan=False))
    else:
        print_sweep(result.rows, result.manifest)
        print(f"\nRows:   {folder / 'rows.parquet'}\nReport: {page}")
    if result.manifest["failed"]:
        raise CheckFailed(f"{len(result.manifest['failed'])} of {len(result.manifest['cells'])} cells failed.")


def heads(
    model: str,
    /,
    *,
    options: Annotated[HeadsOptions, Parameter(name="*")] = HeadsOptions(),  # noqa: B008
    json: bool = False,
) -> None:
    """What is lost without each head: accuracy of a training run, next-token loss of a checkpoint.

    Examples:

        wherefrom heads wherefrom-runs/train-1a2b3c4d

        wherefrom heads smollm2 --layers 0-2 --inputs 4

        wherefrom heads ./my-checkpoint --text book.txt --how zero --how mean --out heads

    Parameters
    ----------
    model
        A folder that `wherefrom train` wrote, smollm2 (packaged), a hub id, a local folder or a GGUF file.
    json
        Print a JSON summary and nothing else on standard output.
    """
    from wherefrom.api import load
    from wherefrom.models.loading import resolve_device
    from wherefrom.models.toy_store import is_toy
    from wherefrom.report import build_report
    from wherefrom.report.heads_text import print_heads
    from wherefrom.workflows.heads import checkpoint_heads, trained_heads

    progress = Progress()
    if is_toy(model):
        for name, given in (("layers", options.layers), ("text", options.text)):
            if given is not None:
                raise BadInput(f"--{name} is for checkpoints; '{model}' is a training run, whose task is known.")
        out = options.out or Path(RUNS) / f"{Path(model).resolve().name}-heads-{options.examples}"
        device = str(resolve_device(options.device))
        hows = options.how or ("zero", "mean", "resample")
        found = trained_heads(model, hows, options.examples, out, options.seed, device, progress, _command())
    else:
        progress.say(f"Loading {model} ...")
        decoder = load(model, options.dtype, options.device, trust_remote_code=options.trust_remote_code)
        hows = options.how or ("zero",)
        prompts, layers = options.prompts(decoder), options.parsed_layers()
        found = checkpoint_heads(decoder, prompts, hows, layers, options.out, RUNS, progress, _command())
    assert found.folder is not None
    page = build_report(found.folder)
    if json:
        print(json_module.dumps(found.summary(), allow_nan=False))
        return
    print_heads(found.rows, found.manifest)
    print(f"\nRows:   {found.folder / 'rows.parquet'}\nReport: {page}")


def tasks() -> None:
    """Synthetic tasks that `wherefrom train --task` takes."""
    from wherefrom.tasks import list_tasks

    for entry in list_tasks():
        kind = "positional" if entry["positional"] else "order-blind"
        print(f"{entry['name']} ({kind})\n    {entry['summary']}\n    {entry['input']}\n    {entry['answer']}")
        options = entry["options"]
        if isinstance(options, dict) and options:
            print("    options: " + ", ".join(f"{name}={value}" for name, value in options.items()))


def recipes() -> None:
    """Experiments that `wherefrom sweep` runs."""
    from wherefrom.recipes import list_recipes

    for entry in list_recipes():
        cells, seeds = entry["cells"], entry["seeds"]
        assert isinstance(cells, dict)
        assert isinstance(seeds, dict)
        sizes = ", ".join(f"{scale} {count} x {seeds[scale]} seeds" for scale, count in cells.items())
        print(f"{entry['name']}\n    {entry['summary']}\n    cells: {sizes}")


def register(app: App, lists: App) -> None:
    """Add the commands of the lab."""
    app.command(train)
    app.command(sweep)
    app.command(heads)
    lists.command(tasks)
    lists.command(recipes)
