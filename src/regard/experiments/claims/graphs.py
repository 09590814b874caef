"""Graph attention: attention along edges, and the static attention of GAT against GATv2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.parts.edges import Edges
from ...nn.graphs.attention import GraphAttention
from ...nn.hooks.watch import watch
from ..experiment import Bilingual, Claim, Criterion, Language, Measurements, Size, Verdict, judge
from ..parameters import (
    NO_SETTINGS,
    SEEDS_TEXT,
    STEPS_TEXT,
    Parameter,
    Settings,
    constant,
    count,
    resolve_counts,
    resolve_settings,
)
from ..progress import ProgressCallback, nth_subprogress, subprogress
from ..toolkit.figures import draw_reference_line, label_axes, localizer, plot_bars, plot_summaries, subplots
from ..toolkit.metrics import accuracy, format_percent, summarize
from ..toolkit.training import choose_by_size, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    number=17,
    name="graphs",
    title=Bilingual("Attention on graphs: along edges only", "图上的注意力：只沿着边"),
    claim=Bilingual(
        "On a graph a node only needs to attend to the nodes it shares an edge with: the edges are prior knowledge. "
        "The score function matters too: GAT ranks the neighbours in the same order for every query, GATv2 does not.",
        "在图上，节点只需要关注与它有边相连的节点：边本身就是先验知识。打分函数也很重要："
        "GAT 对每个查询给出同样的邻居排序，GATv2 则不然。",
    ),
    setup=Bilingual(
        "(1) Random graphs of coloured nodes; each node predicts whether most of its neighbours are red. Attention "
        "along edges, full attention, and full attention with the edges as features (a row of the adjacency matrix), "
        "tested on new graphs. (2) The dictionary lookup of the GATv2 paper: k query nodes, each with edges from all "
        "k key nodes, predict the value of the key with the same name.",
        "（1）节点带颜色的随机图，每个节点预测它的邻居是否多数为红色。比较沿边注意力、全注意力，"
        "以及以边为特征（邻接矩阵的一行）的全注意力，在新图上测试。（2）GATv2 论文中的查字典任务："
        "k 个查询节点与全部 k 个键节点相连，预测同名的键的值。",
    ),
    criteria=(
        Criterion(
            "edges",
            Bilingual(
                "Attention along edges is accurate on new graphs (at least 95 %)",
                "沿边注意力在新图上准确（不低于 95%）",
            ),
            ">=",
            0.95,
        ),
        Criterion(
            "better",
            Bilingual(
                "It is at least 15 points better than full attention, with or without the edges as features",
                "它比全注意力（无论是否以边为特征）至少高 15 个百分点",
            ),
            ">=",
            0.15,
        ),
        Criterion(
            "gatv2",
            Bilingual(
                "GATv2 solves the lookup at every k (at least 95 %)", "GATv2 在每个 k 上都能查字典（不低于 95%）"
            ),
            ">=",
            0.95,
        ),
        Criterion(
            "gat",
            Bilingual(
                "GAT with as many heads does not at the largest k (below 95 %)",
                "头数相同的 GAT 在最大的 k 上不能（低于 95%）",
            ),
            "<=",
            0.95,
        ),
    ),
)

NODES, DIM = 16, 32
PARAMETERS = (
    Parameter("density", Bilingual("probability of an edge", "边的概率"), 0.05, 0.95, constant(0.3)),
    count("steps", STEPS_TEXT, 1, 20000, {"toy": 5, "usual": 200, "full": 800}),
    count("seeds", SEEDS_TEXT, 1, 20, {"toy": 1, "usual": 2, "full": 5}),
)


def measure(size: Size, seed: int, progress: ProgressCallback, settings: Settings = NO_SETTINGS) -> Measurements:
    counts = resolve_counts(PARAMETERS, size, settings)
    density = resolve_settings(PARAMETERS, size, settings)["density"]
    seeds, steps = counts["seeds"], counts["steps"]
    key_counts = choose_by_size(size, [3], [4, 8, 12], [4, 8, 16, 24])
    runs = [
        run_seed(density, steps, seed * 1000 + n, key_counts, nth_subprogress(progress, n, seeds)) for n in range(seeds)
    ]
    layers = list(runs[0]["lookup"])
    return {
        "sizes": key_counts,
        "neighbours": {name: summarize([run["neighbours"][name] for run in runs]) for name in runs[0]["neighbours"]},
        "lookup": {
            layer: {str(k): summarize([run["lookup"][layer][str(k)] for run in runs]) for k in key_counts}
            for layer in layers
        },
        "distinct": {layer: summarize([run["distinct"][layer] for run in runs]) for layer in layers},
    }


def run_seed(density: float, steps: int, seed: int, lookups: list[int], progress: ProgressCallback) -> Measurements:
    majority_progress = subprogress(progress, 0.0, 0.3)
    variants = {"along edges": "edges", "full": "full", "full, told the edges": "features"}
    neighbours = {
        name: train_majority(edge_use, density, steps, seed, nth_subprogress(majority_progress, n, 3, name))
        for n, (name, edge_use) in enumerate(variants.items())
    }
    accuracies: dict[str, dict[str, float]] = {}
    distinct: dict[str, float] = {}
    layers = {"GAT, 1 head": (1, 1), "GAT, 8 heads": (1, 8), "GATv2, 1 head": (2, 1), "GATv2, 8 heads": (2, 8)}
    for n, (name, (version, heads)) in enumerate(layers.items()):
        accuracies[name] = {}
        for m, k in enumerate(lookups):
            run_progress = nth_subprogress(
                subprogress(progress, 0.3 + 0.7 * n / 4, 0.3 + 0.7 * (n + 1) / 4), m, len(lookups), f"{name}, k = {k}"
            )
            accuracies[name][str(k)], distinct[name] = train_lookup(version, heads, k, 2 * steps, seed, run_progress)
    return {"neighbours": neighbours, "lookup": accuracies, "distinct": distinct}


def train_majority(edge_use: str, density: float, steps: int, seed: int, progress: ProgressCallback) -> float:
    """Train on 200 graphs; returns the accuracy on the nodes of new graphs."""
    torch.manual_seed(seed)
    model = MajorityModel(edge_use)
    training_graphs = [sample_graphs(8, density) for _ in range(25)]

    def loss() -> Tensor:
        colours, adjacency, labels = training_graphs[int(torch.randint(len(training_graphs), ()))]
        return nn.functional.cross_entropy(model(colours, adjacency), labels)

    fit(model, loss, steps, 5e-3, progress, cuda_graph=False)
    colours, adjacency, labels = sample_graphs(100, density)
    with torch.no_grad():
        return accuracy(model(colours, adjacency), labels)


def sample_graphs(graphs: int, density: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """Colours `[graphs · NODES]`, the adjacency `[graphs, NODES, NODES]`, and whether most neighbours are red.

    Where a node has as many red as blue neighbours, a random one is removed.
    """
    colours = torch.randint(2, (graphs, NODES))
    adjacency = torch.rand(graphs, NODES, NODES) < density
    adjacency = (adjacency | adjacency.mT) & ~torch.eye(NODES, dtype=torch.bool)
    red = (adjacency & (colours[:, None] == 1)).sum(-1)
    removable = adjacency & (colours[:, None] == torch.randint(2, (graphs, NODES))[..., None])
    graph, node = ((2 * red == adjacency.sum(-1)) & (red > 0)).nonzero().unbind(1)
    adjacency[graph, node, removable.float().argmax(-1)[graph, node]] = False
    red = (adjacency & (colours[:, None] == 1)).sum(-1)
    return colours.flatten(), adjacency, (2 * red > adjacency.sum(-1)).long().flatten()


class MajorityModel(nn.Module):
    """One layer of GATv2 over the edges, over all pairs of a graph, or over all pairs with edges as features."""

    def __init__(self, edge_use: str) -> None:
        super().__init__()
        self.edge_use = edge_use
        self.colour = nn.Embedding(2, DIM)
        self.node = nn.Embedding(NODES, DIM)
        self.row = nn.Linear(NODES, DIM)
        self.layer = GraphAttention(DIM, DIM, heads=4, version=2, self_loops=False, residual=True)
        self.head = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, 2))

    def forward(self, colours: Tensor, adjacency: Tensor) -> Tensor:
        graphs = adjacency.shape[0]
        x = self.colour(colours)
        if self.edge_use == "features":
            x = x + self.row(adjacency.flatten(0, 1).float()) + self.node.weight.repeat(graphs, 1)
        allowed = adjacency if self.edge_use == "edges" else torch.ones_like(adjacency)
        graph, target, source = allowed.nonzero().unbind(1)
        edges = torch.stack([source, target]) + graph * NODES
        return self.head(self.layer(x, Edges(edges)))


def train_lookup(
    version: int, heads: int, k: int, steps: int, seed: int, progress: ProgressCallback
) -> tuple[float, float]:
    """(accuracy, fraction of distinct keys among those with the largest weight for the k queries)."""
    torch.manual_seed(seed)
    model = GraphLookup(version, heads, k)
    fit(model, lambda: nn.functional.cross_entropy(*model.sample(16)), steps, 1e-2, progress, cuda_graph=False)
    with torch.no_grad(), watch(model, weights=True) as views:
        right = accuracy(*model.sample(16))
    weights = views["layer"].weights[0]  # type: ignore[index]
    keys = weights.argmax(-1).unflatten(-1, (16, 2 * k))[:, :, k:]  # [heads, graphs, queries]
    counts = [len(head_keys.unique()) / k for head_keys in keys.flatten(0, 1)]
    return right, sum(counts) / len(counts)


class GraphLookup(nn.Module):
    """Keys with a name and a value, queries with a name; one graph attention layer and a linear head."""

    def __init__(self, version: int, heads: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.names, self.values = nn.Embedding(k, DIM), nn.Embedding(k + 1, DIM)
        self.layer = GraphAttention(DIM, DIM, heads, version=1 if version == 1 else 2, self_loops=False)
        self.head = nn.Linear(DIM, k)
        key, query = torch.arange(k), torch.arange(k, 2 * k)
        self.edges = torch.cartesian_prod(key, query).T  # [2, k · k]

    def sample(self, graphs: int) -> tuple[Tensor, Tensor]:
        """Logits and true values of the queries of new graphs, `[graphs · k, k]` and `[graphs · k]`."""
        k = self.k
        values = torch.stack([torch.randperm(k) for _ in range(graphs)])
        keys = self.names.weight + self.values(values)
        queries = (self.names.weight + self.values.weight[k]).expand(graphs, -1, -1)
        nodes = torch.cat([keys, queries], 1)  # [graphs, 2 k, dim]
        edges = (self.edges[:, None] + 2 * k * torch.arange(graphs)[:, None]).flatten(1)
        y = self.layer(nodes.flatten(0, 1), Edges(edges)).unflatten(0, (graphs, 2 * k))
        return self.head(y[:, k:]).flatten(0, 1), values.flatten()


def verdict(numbers: Measurements) -> Verdict:
    majority = {name: summary["mean"] for name, summary in numbers["neighbours"].items()}
    edges, others = majority["along edges"], max(majority["full"], majority["full, told the edges"])
    largest = str(numbers["sizes"][-1])
    newer = min(summary["mean"] for summary in numbers["lookup"]["GATv2, 8 heads"].values())
    older = numbers["lookup"]["GAT, 8 heads"][largest]["mean"]
    measured = {
        "edges": (edges, Bilingual.same(format_percent(edges))),
        "better": (
            edges - others,
            Bilingual(f"{100 * (edges - others):+.0f} points", f"{100 * (edges - others):+.0f} 个百分点"),
        ),
        "gatv2": (newer, Bilingual(f"{format_percent(newer)} at worst", f"最低 {format_percent(newer)}")),
        "gat": (older, Bilingual.same(format_percent(older))),
    }
    single = [numbers["lookup"][f"{name}, 1 head"][largest]["mean"] for name in ("GAT", "GATv2")]
    same = [numbers["distinct"][f"{name}, 1 head"]["mean"] for name in ("GAT", "GATv2")]
    key = Bilingual(
        f"along edges {format_percent(edges)}, full {format_percent(others)}; lookup: GATv2 {format_percent(newer)}, GAT {format_percent(older)}",
        f"沿边 {format_percent(edges)}，全注意力 {format_percent(others)}；查字典：GATv2 {format_percent(newer)}，GAT {format_percent(older)}",
    )
    return judge(CLAIM, measured, key, Bilingual(
        f"Accuracy on new graphs: along edges {format_percent(edges)}, full attention {format_percent(majority['full'])}, with edges as features "
        f"{format_percent(majority['full, told the edges'])}. Lookup with 8 heads: GATv2 at least {format_percent(newer)} at every k, "
        "GAT "
        f"{format_percent(older)} at k = {largest}; with one head {format_percent(single[1])} and {format_percent(single[0])}. The "
        "queries of a "
        f"graph have their largest weights on {same[0]:.2f} k different keys in GAT, {same[1]:.2f} k in GATv2 (1 head).",
        f"沿边注意力在新图上准确率 {format_percent(edges)}，全注意力 {format_percent(majority['full'])}，以边为特征的全注意力 "
        f"{format_percent(majority['full, told the edges'])}。"
        f"查字典（8 个头）：GATv2 在每个 k 上不低于 {format_percent(newer)}，GAT 在 k = {largest} 时为 {format_percent(older)}；"
        f"只有一个头时分别为 {format_percent(single[1])} 和 {format_percent(single[0])}。"
        f"一个图中各查询的最大权重落在多少个不同的键上：GAT 为 {same[0]:.2f} k，GATv2 为 {same[1]:.2f} k（1 个头）。",
    ))  # fmt: skip


def draw(numbers: Measurements, language: Language) -> Figure:
    tr = localizer(language)
    with subplots(language, 3, width=4.0) as (figure, (left, middle, right)):
        figure.suptitle(tr("Prediction from neighbours, and dictionary lookup", "由邻居预测，以及查字典"))
        names = [
            tr("along\nedges", "沿边"),
            tr("full", "全注意力"),
            tr("full, edges\nas features", "全注意力\n（边为特征）"),
        ]
        plot_bars(left, names, {"": list(numbers["neighbours"].values())})
        draw_reference_line(left, 0.5, tr("chance", "随机"))
        left.legend(fontsize=7)
        label_axes(
            left,
            tr("Are most neighbours red? (new graphs)", "多数邻居是红色吗？（新图）"),
            "",
            tr("accuracy", "准确率"),
        )
        for n, (layer, summaries) in enumerate(numbers["lookup"].items()):
            plot_summaries(
                middle, n, numbers["sizes"], [summaries[str(k)] for k in numbers["sizes"]], layer_label(layer, language)
            )
        middle.plot(numbers["sizes"], [1 / k for k in numbers["sizes"]], color="#666666", linewidth=0.9, label="1 / k")
        middle.set_xticks(numbers["sizes"])
        middle.set_ylim(0, 1.5)
        label_axes(middle, tr("Dictionary lookup", "查字典"), tr("keys k", "键的数目 k"), tr("accuracy", "准确率"))
        middle.legend(fontsize=7, ncols=2, loc="upper center")
        labels = [layer_label(layer, language).replace(", ", "\n").replace("，", "\n") for layer in numbers["distinct"]]
        plot_bars(right, labels, {"": list(numbers["distinct"].values())})
        title = tr("Distinct keys with the largest weight", "最大权重所在的不同键")
        label_axes(
            right, title, "", tr(f"fraction of k = {numbers['sizes'][-1]}", f"占 k = {numbers['sizes'][-1]} 的比例")
        )
    return figure


def layer_label(layer: str, language: Language) -> str:
    """The label of a layer in a language."""
    if language == "en":
        return layer
    return layer.replace(", ", "，").replace("heads", "个头").replace("head", "个头")
