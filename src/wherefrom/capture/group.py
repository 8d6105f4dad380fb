"""The sums of one group of inputs over all edits: what is saved, resumed, merged, and left out by the jackknife."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from wherefrom.capture.call import AttentionCall
from wherefrom.capture.edits import Edit, RunInputs
from wherefrom.capture.leak_sums import LeakCell, LeakSums
from wherefrom.capture.plan import LeakPlan
from wherefrom.capture.residual_sums import ResidualSums
from wherefrom.capture.session import run
from wherefrom.capture.sink_sums import SinkSums
from wherefrom.encodings.masks import MaskRule
from wherefrom.models.hf import Decoder


class RunSums:
    """Everything one edit's runs leave behind: leak, sink and residual sums."""

    def __init__(self, plan: LeakPlan) -> None:
        self.leak = LeakSums(plan)
        self.sinks = SinkSums()
        self.residual = ResidualSums()

    def take(self, decoder: Decoder, inputs: RunInputs, edits: Sequence[Edit]) -> None:
        """Run one batch under `edits` and add it to the sums."""

        def observe(call: AttentionCall) -> None:
            self.leak.observe(call, inputs.indices)
            self.sinks.observe(call)

        run(decoder, inputs, observe, edits, self.residual.observe)
        for sums in (self.leak, self.sinks, self.residual):
            sums.count(len(inputs.indices))

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Flat tensors and a JSON-able header, for safetensors."""
        flat: dict[str, Tensor] = {}
        rules = {}
        for (layer, number), cell in self.leak.cells.items():
            key = f"leak/{layer}/{number}"
            rules[f"{layer}/{number}"] = [cell.rule.causal, cell.rule.window, cell.rule.hide_first]
            flat |= {f"{key}/{name}": value for name, value in cell.sums.items()}
        for kind, kept in (("sinks", self.sinks.layers), ("residual", self.residual.depths)):
            flat |= {f"{kind}/{i}/{name}": value for i, sums in kept.items() for name, value in sums.items()}
        header = {"inputs": self.leak.inputs, "denominator_error": self.leak.denominator_error, "rules": rules}
        return flat, header

    @classmethod
    def from_tensors(cls, plan: LeakPlan, flat: dict[str, Tensor], header: dict[str, Any]) -> RunSums:
        """The inverse of `tensors`."""
        sums = cls(plan)
        sums.leak.denominator_error = header["denominator_error"]
        for part in (sums.leak, sums.sinks, sums.residual):
            part.inputs = header["inputs"]
        for key, (causal, window, hide_first) in header["rules"].items():
            layer, number = (int(x) for x in key.split("/"))
            sums.leak.cells[layer, number] = LeakCell(MaskRule(causal, window, hide_first))
        for key, value in flat.items():
            kind, *path = key.split("/")
            if kind == "leak":
                sums.leak.cells[int(path[0]), int(path[1])].sums[path[2]] = value
            else:
                kept = sums.sinks.layers if kind == "sinks" else sums.residual.depths
                kept.setdefault(int(path[0]), {})[path[1]] = value
        return sums


class GroupSums:
    """One jackknife group: a RunSums per edit, and which inputs are in."""

    def __init__(self, plan: LeakPlan, edits: Sequence[str]) -> None:
        self.plan = plan
        self.runs = {edit: RunSums(plan) for edit in edits}
        self.done: list[int] = []

    def to_bytes(self) -> bytes:
        """One safetensors blob."""
        from safetensors.torch import save

        flat: dict[str, Tensor] = {}
        headers = {}
        for edit, sums in self.runs.items():
            tensors, headers[edit] = sums.tensors()
            flat |= {f"{edit}\n{key}": value.contiguous().cpu() for key, value in tensors.items()}
        return save(flat, {"runs": json.dumps(headers), "done": json.dumps(self.done)})

    @classmethod
    def from_file(cls, plan: LeakPlan, path: str) -> GroupSums:
        """The inverse of `to_bytes`, from a file."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            headers = json.loads(header["runs"])
            flat: dict[str, dict[str, Tensor]] = {edit: {} for edit in headers}
            for key in file.keys():  # noqa: SIM118
                edit, _, name = key.partition("\n")
                flat[edit][name] = file.get_tensor(key)
        group = cls(plan, list(headers))
        group.runs = {edit: RunSums.from_tensors(plan, flat[edit], headers[edit]) for edit in headers}
        group.done = json.loads(header["done"])
        return group


def group_bounds(inputs: int, groups: int) -> list[tuple[int, int]]:
    """Inputs of each jackknife group as half-open intervals whose sizes differ by at most one."""
    edges = [round(g * inputs / groups) for g in range(groups + 1)]
    return list(zip(edges, edges[1:], strict=False))
