"""Convolution, recurrence and attention as graphs: which inputs reach an output, and in how many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...experiments.experiment import Bilingual, Language
from ..figures import COLOURS
from ..step import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NETWORKS = (Bilingual("convolution", "卷积"), Bilingual("recurrent network", "RNN"), Bilingual("attention", "注意力"))
Node = tuple[int, int]


def draw(axes: Axes, result: Result, language: Language) -> None:
    """A panel for each network, inputs below; an input has the number of its steps, or × if it does not reach."""
    tokens, layers = int(result["tokens"]), int(result["layers"])
    width = tokens + 1.5
    axes.set(xlim=(-0.8, 3 * width - 1.2), ylim=(-0.9, layers + 0.9))
    for network, name in enumerate(NETWORKS):
        left = network * width
        edges = list_edges(network, tokens, layers, int(result["kernel"]))
        seen = find_sources(edges, (layers, int(result["output"])))
        for start, end in edges:
            used = start in seen and end in seen
            xs, ys = [left + start[1], left + end[1]], [start[0], end[0]]
            axes.plot(xs, ys, color=COLOURS["query" if used else "line"], lw=0.9 if used else 0.5, zorder=1 + used)
        for layer in range(layers + 1):
            for token in range(tokens):
                colour = COLOURS["query" if (layer, token) in seen else "line"]
                if (layer, token) == (layers, result["output"]):
                    colour = COLOURS["output"]
                axes.plot(left + token, layer, "o", ms=5 if layer else 11, color=colour if layer else "white", zorder=3)
        for token, hops in enumerate(result["hops"][network]):
            reached = bool(np.isfinite(hops))
            words, colour = (f"{hops:.0f}", COLOURS["key"]) if reached else ("×", COLOURS["soft"])
            axes.plot(left + token, 0, "o", ms=11, mfc="white", mec=colour, zorder=4)
            axes.text(left + token, 0, words, ha="center", va="center", fontsize=7, color=colour, zorder=5)
        reached, farthest = result["reached"][network], result["farthest"][network]
        fact = Bilingual(
            f"{reached} of {tokens} inputs, ≤ {farthest:.0f} steps",
            f"{tokens} 个输入中的 {reached} 个，至多 {farthest:.0f} 步",
        )
        axes.text(left, layers + 0.5, name(language), fontsize=9, weight="bold")
        axes.text(left, -0.65, fact(language), fontsize=7.5, color=COLOURS["soft"])


def list_edges(network: int, tokens: int, layers: int, kernel: int) -> list[tuple[Node, Node]]:
    """The edges of a network between nodes (layer, token)."""
    edges: list[tuple[Node, Node]] = []
    for layer in range(1, layers + 1):
        for to in range(tokens):
            if network == 1:
                edges += [((layer - 1, to), (layer, to))] + ([((layer, to - 1), (layer, to))] if to else [])
                continue
            near = [n for n in range(tokens) if network == 2 or abs(n - to) <= kernel // 2]
            edges += [((layer - 1, n), (layer, to)) for n in near]
    return edges


def find_sources(edges: list[tuple[Node, Node]], output: Node) -> set[Node]:
    """The nodes from which the output can be reached."""
    seen, waiting = {output}, [output]
    while waiting:
        node = waiting.pop()
        new = [start for start, end in edges if end == node and start not in seen]
        seen.update(new)
        waiting += new
    return seen
