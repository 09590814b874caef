"""The tree of `src/regard`: imports go down, names have one meaning, folders are small, `__all__` is stated."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import regard

SOURCE = Path(__file__).parents[1] / "src" / "regard"

LAYERS = (
    "errors",
    "limits",
    "machine",
    "plots",
    "attention",
    "distributed",
    "nn",
    "assets",
    "models",
    "integrations",
    "regard",
    "terminal",
    "data",
    "settings",
    "tasks",
    "train",
    "inference",
    "experiments",
    "course",
    "lab",
    "serve",
    "bench",
    "cli",
    "__main__",
)
"""The packages and modules of `src/regard` from the lowest to the highest; each may import those before it.

`regard` is `regard/__init__.py`, the public names, of which `open` imports `inference` when it is called. `terminal` is
above it because it formats the public errors.
`assets` is below `models`, which reads the shipped files; `integrations` may import everything up to `models`.
"""

MAX_MODULES = 15
LARGE_FOLDERS = {"models/families": "one file for each model family", "experiments/claims": "one file for each claim"}
"""Folders that may have more modules, and why."""

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc"}

PUBLIC_NAMES = {
    "calls and their values": "attend look plan shard watch edit load open export Parts View Plan",
    "scores": "Dot Bilinear Cosine Additive",
    "positions": "Rotary Alibi Bias T5Bias Shaw TransformerXL Disentangled AxialRotary",
    "masks": "Everything Causal Window Dilated Global RandomBlocks NearBlocks Blocks Lengths Documents Edges Pairs"
    " Chunked Prefix Tree",
    "recipes and methods": "longformer bigbird Exact Linformer Nystrom Performer",
    "what today's models add": "Sink PairBias Places EdgeFeatures",
    "base classes of parts": "Mask Score Position Method",
    "converters": "from_key_padding from_attn_mask from_additive from_hugging_face causal_from_start",
    "errors": "RegardError BadInput Unsupported TooLarge Missing",
    "subpackages": "nn models",
}
"""The public surface of the design."""


@dataclass(frozen=True)
class Import:
    """One import of `target` by `module`; `lazy` if it is inside a function or for type checkers only."""

    module: str
    target: str
    path: Path
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE.parents[1])}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """The path of each module by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("regard", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    """Every import of a module of `regard` by another."""
    return tuple(found for module, path in modules().items() for found in imports_of(module, path))


def imports_of(module: str, path: Path) -> Iterator[Import]:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node, lazy in walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            names = [f"{source}.{alias.name}" for alias in node.names]
            targets = [name if name in modules() else source for name in names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            continue
        for target in targets:
            if target in modules() and target != module:
                yield Import(module, target, path, node.lineno, lazy)


def walk(tree: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether importing the module does not execute it."""
    for node in ast.iter_child_nodes(tree):
        yield node, lazy
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk(node, lazy or typing_only or function)


def layer_of(module: str) -> str:
    """The package or module directly below `regard` that a module belongs to."""
    return module.split(".")[1] if "." in module else module


def list_lines(problems: Sequence[object]) -> str:
    """The problems, each in a line of its own."""
    return "\n".join(["", *map(str, problems)])


def test_every_package_has_a_layer() -> None:
    assert {layer_of(module) for module in modules()} == set(LAYERS), "add the package to LAYERS"


def test_imports_go_down() -> None:
    """Also imports inside functions: a package does not know those above it."""
    level = {layer: n for n, layer in enumerate(LAYERS)}
    upward = [
        found
        for found in imports()
        if level[layer_of(found.target)] > level[layer_of(found.module)]
        and not (found.lazy and found.module == "regard")  # public calls import what they need
    ]
    assert not upward, f"imports that go up (LAYERS has the order):{list_lines(upward)}"


@pytest.mark.parametrize("layer", LAYERS)
def test_modules_of_a_package_do_not_import_each_other_in_a_circle(layer: str) -> None:
    """Imports at module level; an import inside a function does not run while modules are imported."""
    edges: dict[str, list[Import]] = {}
    for found in imports():
        if not found.lazy and layer_of(found.module) == layer_of(found.target) == layer:
            edges.setdefault(found.module, []).append(found)
    assert not (circle := find_circle(edges)), f"a circle of imports:{list_lines(circle)}"


def find_circle(edges: dict[str, list[Import]]) -> list[Import]:
    """The imports of one circle, in order; empty if there is none."""
    done: set[str] = set()

    def visit(module: str, trail: list[Import]) -> list[Import]:
        for found in edges.get(module, []):
            start = [step.module for step in [*trail, found]]
            if found.target in start:
                return [*trail, found][start.index(found.target) :]
            if found.target not in done and (circle := visit(found.target, [*trail, found])):
                return circle
        done.add(module)
        return []

    for module in edges:
        if module not in done and (circle := visit(module, [])):
            return circle
    return []


def test_a_circle_is_found() -> None:
    path = SOURCE / "cli.py"
    chain = [Import(a, b, path, n, False) for n, (a, b) in enumerate(["ab", "bc", "cb", "cd"])]
    edges = {module: [found for found in chain if found.module == module] for module in "abc"}
    assert [(found.module, found.target) for found in find_circle(edges)] == [("b", "c"), ("c", "b")]
    del edges["c"]
    assert not find_circle(edges)


def test_file_names_say_what_is_inside() -> None:
    vague = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.stem in VAGUE_NAMES]
    vague += [path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_dir() and path.name in VAGUE_NAMES]
    assert not vague, f"name these after what they contain:{list_lines(vague)}"


def test_folders_are_small() -> None:
    large = []
    for folder in (SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())):
        count = sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        name = folder.relative_to(SOURCE).as_posix()
        if count > MAX_MODULES and name not in LARGE_FOLDERS:
            large.append(f"{name} has {count} modules, more than {MAX_MODULES}")
    assert not large, f"split these folders by subject:{list_lines(large)}"


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules().values():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    several = [f"{name} in {', '.join(paths)}" for name, paths in sorted(homes.items()) if len(paths) > 1]
    assert not several, f"give these classes a name each:{list_lines(several)}"


def test_packages_with_public_names_have_all() -> None:
    missing = []
    for module, path in modules().items():
        if path.name == "__init__.py":
            names = public_names(ast.parse(path.read_text(encoding="utf-8")))
            if names and "__all__" not in names:
                missing.append(f"{path.relative_to(SOURCE)} ({module}) has {', '.join(sorted(names))} and no __all__")
    assert not missing, f"state what is public in __all__, or begin names with an underscore:{list_lines(missing)}"


def public_names(tree: ast.Module) -> set[str]:
    """The names that a module binds without a leading underscore, and `__all__`."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in names if not name.startswith("_") or name == "__all__"}


def test_public_names_are_those_of_the_design() -> None:
    assert sorted(regard.__all__) == sorted(name for names in PUBLIC_NAMES.values() for name in names.split())
