"""What can be measured on a small model beside its scores, by name. `MEASURES` is the one table."""

from __future__ import annotations

import torch

from wherefrom.analyses.deposit import deposit_rows
from wherefrom.analyses.heads import ablation_map
from wherefrom.analyses.readout import readout_rows
from wherefrom.analyses.seeds import seed_rows
from wherefrom.capture.edits import RunInputs
from wherefrom.capture.position_sums import PositionSums
from wherefrom.capture.prompts import Prompts, random_tokens
from wherefrom.capture.query_rows import plan_rows
from wherefrom.capture.selfcheck import parity_check
from wherefrom.capture.session import run
from wherefrom.errors import BadInput
from wherefrom.models.hf import Decoder, wrap
from wherefrom.models.toy import ToyTransformer
from wherefrom.rows import Row
from wherefrom.suggest import suggestion
from wherefrom.tasks.base import Task, examples
from wherefrom.training.loop import Measure
from wherefrom.training.scores import held_out
from wherefrom.workflows.trace import trace

LEAK_INPUTS, FINE_INPUTS = 48, 1024
"""Inputs of a leak trace on a small model: through training, and where the leak of an untrained stack is sought."""
GROUPS, GROUP_INPUTS = 8, 12
"""Jackknife groups of the position readout, and inputs in each."""
ABLATION_EXAMPLES, ON_THE_WAY = 1000, 300
"""Held-out examples on which heads are ablated: after the last step, and on the way."""
SEED_EXAMPLES = 256
"""Training examples behind the gradient seeds."""


def _prompts(model: ToyTransformer, task: Task, inputs: int) -> tuple[Decoder, Prompts]:
    decoder = parity_check(wrap(model, None, "toy"))
    return decoder, random_tokens(decoder, inputs, task.trained_length, "auto", 0)


def leak(model: ToyTransformer, task: Task, step: int, inputs: int = LEAK_INPUTS) -> list[Row]:
    """The leak trace on random tokens of the trained length: layers, and means over heads."""
    decoder, prompts = _prompts(model, task, inputs)
    found = trace(decoder, prompts).rows
    return [Row(**row) for row in found.filter(found["head"].is_null()).to_dicts()]


def fine_leak(model: ToyTransformer, task: Task, step: int) -> list[Row]:
    """The same on many inputs."""
    return leak(model, task, step, FINE_INPUTS)


def position(model: ToyTransformer, task: Task, step: int) -> list[Row]:
    """How much of the residual stream is absolute position, by depth, on random tokens."""
    decoder, prompts = _prompts(model, task, GROUPS * GROUP_INPUTS)
    plan = plan_rows(prompts.length)
    groups = []
    for group in range(GROUPS):
        sums, low = PositionSums(plan), group * GROUP_INPUTS
        ids = prompts.token_ids[low : low + GROUP_INPUTS]
        inputs = RunInputs(ids, tuple(range(low, low + GROUP_INPUTS)), ids[:, 0])

        def residual(depth: int, hidden: torch.Tensor, sums: PositionSums = sums, at: RunInputs = inputs) -> None:
            sums.observe(depth, hidden, at.indices)

        run(decoder, inputs, residual=residual)
        sums.count(inputs.indices)
        groups.append(sums)
    return readout_rows(groups, "none", f"{plan.positions.start}:{plan.positions.stop}")


def deposit(model: ToyTransformer, task: Task, step: int) -> list[Row]:
    """The deposit index of each layer, heads zeroed, on fewer examples: cheap enough to be taken on the way."""
    return deposit_rows(ablation_map(model, held_out(task, ON_THE_WAY)))


def heads(model: ToyTransformer, task: Task, step: int) -> list[Row]:
    """Accuracy lost without each head, and the deposit index of each layer, on held-out examples."""
    data = held_out(task, ABLATION_EXAMPLES)
    rows = []
    for how in ("zero", "mean"):
        found = ablation_map(model, data, how=how)
        rows += [*found.rows(), *deposit_rows(found)]
    return rows


def seeds(model: ToyTransformer, task: Task, step: int) -> list[Row]:
    """Gradient seeds of every head, on training examples that no step used."""
    return seed_rows(model, examples(task, SEED_EXAMPLES, 0, "train", -1))


MEASURES: dict[str, Measure] = {
    "heads": heads,
    "deposit": deposit,
    "seeds": seeds,
    "leak": leak,
    "fine-leak": fine_leak,
    "position": position,
}


def measure(name: str) -> Measure:
    """The measure of that name. Raises BadInput, with the nearest name, where there is none."""
    if name not in MEASURES:
        closest = suggestion(name, MEASURES) or f"; there are {', '.join(MEASURES)}."
        raise BadInput(f"There is no measure '{name}'{closest}")
    return MEASURES[name]


def on_the_way(inner: Measure, last: int) -> Measure:
    """The same measure, at every score but the last."""
    return lambda model, task, step: inner(model, task, step) if step != last else []


def at_the_end(inner: Measure, last: int) -> Measure:
    """The same measure, after the last step only."""
    return lambda model, task, step: inner(model, task, step) if step == last else []
