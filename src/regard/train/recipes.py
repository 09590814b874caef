"""Recipes: settings that reproduce a known result, one file each, with the expected range of a metric."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from ..data.json_values import JsonObject
from ..errors import BadInput


@dataclass(frozen=True)
class Recipe:
    """A task with its settings; `metric` on the validation data is expected between `low` and `high`."""

    name: str
    task: str
    settings: JsonObject = field(default_factory=dict)
    about: str = ""
    metric: str | None = None
    low: float | None = None
    high: float | None = None

    def verdict(self, metrics: dict[str, float]) -> str | None:
        """A message if the metric of a run is outside of the expected range; None if it is inside."""
        if self.metric is None or self.metric not in metrics:
            return None
        value = metrics[self.metric]
        if self.low is not None and value < self.low:
            return (
                f"{self.metric} is {value:.4f}; this recipe reaches {self.low:g} and more. Something is not as it was."
            )
        if self.high is not None and value > self.high:
            return f"{self.metric} is {value:.4f}; this recipe stays below {self.high:g}. Something is not as it was."
        return None


def recipe_names() -> list[str]:
    return sorted(path.name.removesuffix(".toml") for path in files("regard.train").joinpath("recipes").iterdir())


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or the one in the file of that name."""
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return read_recipe(path.stem, path.read_text("utf8", "replace"))
    if name not in recipe_names():
        near = difflib.get_close_matches(name, recipe_names(), n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"There is no recipe {name!r}. {hint}There are {', '.join(recipe_names())}.")
    return read_recipe(name, files("regard.train").joinpath("recipes", f"{name}.toml").read_text("utf8"))


def read_recipe(name: str, text: str) -> Recipe:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise BadInput(f"The recipe {name} is not TOML: {error}.") from None
    expected, settings = data.get("expected", {}), data.get("settings", {})
    complete = isinstance(data.get("task"), str) and isinstance(settings, dict) and isinstance(expected, dict)
    if not complete or set(expected) - {"metric", "low", "high"}:
        raise BadInput(
            f'The recipe {name} is incomplete. Give task = "NAME", a table [settings], and perhaps [expected] with '
            "metric, low and high."
        )
    return Recipe(name, data["task"], data.get("settings", {}), data.get("about", ""), **expected)
