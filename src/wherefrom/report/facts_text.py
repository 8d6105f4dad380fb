"""The fact sheet as a terminal shows it: layers that are alike share a block."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_facts(facts: dict[str, Any], console: Console | None = None) -> None:
    """Print a fact sheet, as `Facts.to_dict()` gives it."""
    console = console or Console()

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, highlight=False, markup=False)

    model = facts["model"]
    say(f"\n{model['name']}", "bold")
    kind = "" if model["name"] == model["class"] else f"{model['class']}, "
    say(f"{kind}{model['layers']} layers, {model['dtype']}; {_embeddings(facts)}")
    for warning in facts["warnings"]:
        say(f"note: {warning}", "yellow")
    for group in grouped(facts["layers"]):
        numbers = [layer["layer"] for layer in group]
        say(f"\n{'layer' if len(numbers) == 1 else 'layers'} {_span(numbers)}", "bold")
        console.print(_sheet(lines_of(group[0])))
    say("")
    for line in [*_precision_lines(facts["layers"]), *_length_lines(facts), *_unread_lines(facts["layers"])]:
        say(line)
    for line in _config_lines(facts):
        say(line)


def _embeddings(facts: dict[str, Any]) -> str:
    tied = {True: "input and output embeddings tied", False: "embeddings not tied", None: "no output head"}
    tables = [f"learned position table for {t['positions']} positions" for t in facts["position_tables"]]
    return ", ".join([*tables, tied[facts["tied_embeddings"]]])


def _sheet(lines: dict[str, str]) -> Table:
    sheet = Table.grid(padding=(0, 2, 0, 0))
    sheet.add_column(no_wrap=True)
    sheet.add_column()
    for name, text in lines.items():
        sheet.add_row(Text(f"  {name}"), Text(text))
    return sheet


def grouped(layers: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Layers that show the same lines, in the order in which each kind first appears.

    Learned sinks differ from layer to layer and would keep all apart: a group shows the range over its layers.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for layer in layers:
        alike = {**layer, "sinks": None if layer["sinks"] is None else []}
        groups.setdefault(repr(lines_of(alike)), []).append(layer)
    return [_joined(group) for group in groups.values()]


def _joined(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sinks = [value for layer in group for value in layer["sinks"] or []]
    return [{**group[0], "sinks": sinks or group[0]["sinks"]}, *group[1:]]


def _span(numbers: list[int]) -> str:
    """`0-4, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def lines_of(layer: dict[str, Any]) -> dict[str, str]:
    """Name and text of each line about one layer; what a layer has not is left out."""
    heads = f"{_count(layer['query_heads'])} query, {_count(layer['kv_heads'])} key/value"
    heads += f", size {_count(layer['head_dim'])}"
    if layer["value_dim"] != layer["head_dim"]:
        heads += f" (values {_count(layer['value_dim'])})"
    lines = {"heads": heads, "keys seen": _mask(layer["mask"]), "logits": _logits(layer)}
    lines["rotation"] = _rotation(layer["rotary"])
    if layer["sinks"] is not None:
        spread = f", {min(layer['sinks']):.3g} to {max(layer['sinks']):.3g} nats" if layer["sinks"] else ""
        lines["sinks"] = f"one learned sink logit per query head{spread}"
    if layer["bias"] is not None:
        lines["bias"] = _bias(layer["bias"])
    if layer["other"]:
        lines["also"] = "hands " + ", ".join(layer["other"]) + " to its attention function"
    return lines


def _mask(mask: dict[str, Any] | None) -> str:
    if mask is None:
        return "not read"
    if mask["window"] is not None:
        return f"the latest {mask['window']}, its own included"
    return "all up to its own" if mask["kind"] == "causal" else (mask["note"] or mask["kind"])


def _logits(layer: dict[str, Any]) -> str:
    if layer["scale"] is None:
        return "not read"
    parts = [f"dot product × {layer['scale']:.4g}"]
    rotary = layer["rotary"]
    if rotary and abs(rotary["logit_scaling"] - 1) > 1e-6:
        parts.append(f"× {rotary['logit_scaling']:.4g} from the rotation")
    if layer["softcap"] is not None:
        parts.append(f"soft-capped at {layer['softcap']:g} nats")
    return ", ".join(parts)


def _rotation(rotary: dict[str, Any] | None) -> str:
    if rotary is None:
        return "not read"
    if rotary["pairing"] == "none":
        return "none"
    name = {"half": "half-split pairs", "interleaved": "interleaved pairs"}.get(rotary["pairing"], "pairs")
    still = f" ({rotary['still_pairs']} of them still)" if rotary["still_pairs"] else ""
    base = "frequencies not geometric" if rotary["base"] is None else f"base {rotary['base']:.6g}"
    where = f"dimensions {rotary['start']} to {rotary['start'] + rotary['rotary_dims'] - 1}"
    turns = "" if rotary["sign"] > 0 else ", turning backwards"
    lengths = f"{rotary['shortest_wavelength']:.4g} to {rotary['longest_wavelength']:,.0f} tokens per turn"
    return f"{rotary['pairs']} {name}{still}, {where}, {base}, {lengths}{turns}"


def _bias(bias: dict[str, Any]) -> str:
    if not bias["slopes"]:
        return "a bias that is not linear in the distance"
    rule = " and ".join(bias["rules"]) + " rule" if bias["rules"] else "no known rule"
    factor = "" if bias["factor"] == 1 else f" × {bias['factor']:.4g}"
    return "slopes " + " ".join(f"{slope:.4g}" for slope in bias["slopes"]) + f" nats per token ({rule}{factor})"


def _count(value: int | None) -> str:
    return "?" if value is None else str(value)


def _precision_lines(layers: list[dict[str, Any]]) -> list[str]:
    lines: dict[str, None] = {}
    for layer in layers:
        found = layer["precision"]
        if found is None:
            continue
        formed = f"Angles are formed in {found['angle_dtype']}"
        if found["angle_dtype"] is None:
            formed = f"Angles come from a ready table of {found['limit'] or 'enough'} positions"
        stored = f" from frequencies stored in {found['frequency_dtype']}" if found["frequency_dtype"] else ""
        apart = " and ".join(f"{count} of the first {length}" for length, count in found["distinct"].items())
        lines[f"{formed}{stored}, used in {found['table_dtype']}: {apart} positions stay apart."] = None
    return list(lines)


def _length_lines(facts: dict[str, Any]) -> list[str]:
    if not facts["length_dependent"]:
        return []
    lines = [f"The rotary table depends on the input length ({', '.join(facts['length_dependent'])}):"]
    for at in facts["lengths"]:
        base = "not geometric" if at["base"] is None else f"base {at['base']:.6g}"
        slowest = f"{at['longest_wavelength']:,.0f}"
        lines.append(f"  at {at['length']} tokens, layer {at['layer']}: {base}, up to {slowest} tokens per turn")
    return lines


def _unread_lines(layers: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(f"not read: {line}" for layer in layers for line in layer["unread"]))


def _config_lines(facts: dict[str, Any]) -> list[str]:
    if facts["config_note"]:
        return [facts["config_note"]]
    idle = [key for key in facts["config_keys"] if key["effect"] == "no"]
    if not idle:
        return ["Every config key about position has an effect."] if facts["config_keys"] else []
    lines = ["Config keys about position that change nothing:"]
    return lines + [f"  {key['key']} = {_short(key['value'])}: {key['note']}" for key in idle]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
