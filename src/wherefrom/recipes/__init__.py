"""Recipes: experiments by name, each a function from a scale to cells. `RECIPES` is the one table."""

from __future__ import annotations

from wherefrom.errors import BadInput
from wherefrom.recipes import absolute, architectures, as_published, baselines, deposit, heads, laptop, mla, seeds
from wherefrom.recipes.base import Cell, Recipe, ScaleName
from wherefrom.recipes.scales import check_scale
from wherefrom.suggest import suggestion

__all__ = ["RECIPES", "Cell", "Recipe", "ScaleName", "check_scale", "find_recipe", "list_recipes"]

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        laptop.LAPTOP, laptop.PUBLISHED, as_published.AS_PUBLISHED, heads.ROPE_HEADS, absolute.ABSOLUTE_AND_ROPE,
        mla.MLA, deposit.DEPOSIT, seeds.SEEDS, baselines.BASELINES, architectures.ARCHITECTURES,
    )
}  # fmt: skip


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises BadInput, with the nearest name, where there is none."""
    key = name.strip().lower().replace("_", "-")
    if key not in RECIPES:
        closest = suggestion(key, RECIPES) or f"; there are {', '.join(RECIPES)}."
        raise BadInput(f"There is no recipe '{name}'{closest}")
    return RECIPES[key]


def list_recipes() -> list[dict[str, object]]:
    """Every recipe as a plain dict: name, summary, scale, and for each scale the number of cells and seeds."""
    return [
        {
            "name": recipe.name,
            "summary": recipe.summary,
            "scale": recipe.scale,
            "cells": {scale: len(recipe.cells(scale)) for scale in recipe.seeds},
            "seeds": dict(recipe.seeds),
        }
        for recipe in RECIPES.values()
    ]
