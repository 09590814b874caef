"""Experiment 17: attention along the edges of a graph, and what the first graph attention network cannot ask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...attention.parts.edges import Edges
from ...nn.graph import GraphAttention
from ...nn.hooks.watch import watch
from ..comparing import accuracy, bars, by_size, level, line, name_axes, nth, percent, speaker
from ..experiment import Both, Claim, Language, Size, Tell, Verdict
from ..learning import fit, panels, part, spread

CLAIM = Claim(
    number=17,
    name="graphs",
    title=Both("Attention on graphs: only along edges", "图上的注意力：只沿着边"),
    claim=Both(
        "On a graph a node need only attend to those it has an edge with: the edges themselves are knowledge. And how "
        "it asks matters: GAT ranks the neighbours alike for every node that asks, GATv2 does not.",
        "在图上，节点只需要关注与它有边相连的节点：边本身就是知识。提问的方式也很重要：GAT "
        "对每个提问的节点给出同样的邻居排序，GATv2 则不然。",
    ),
    setup=Both(
        "(1) Random graphs of coloured nodes; each node is asked whether most of its neighbours are red. Attention "
        "along edges, full attention, and full attention that is told the edges as features (a row of the adjacency "
        "matrix); tested on new graphs. (2) The dictionary look-up of the GATv2 paper: k query nodes, each with an "
        "edge from all k key nodes, have to give the value of the key that has their name.",
        "（1）节点带颜色的随机图，问每个节点：它的邻居是否多数为红色。比较沿边注意力、全注意力，"
        "以及把边作为特征（邻接矩阵的一行）告知的全注意力，用新图检验。"
        "（2）GATv2 论文中的查字典任务：k 个查询节点与全部 k 个键节点相连，要给出与自己同名的键的值。",
    ),
    threshold=Both(
        "Holds if along edges at least 95 % are right on new graphs and 15 points more than with either full "
        "attention, "
        "and GATv2 gets at least 95 % of the look-ups at every k where GAT with as many heads gets less at the largest "
        "k. Limited if one of the two parts holds. Fails if none.",
        "成立：沿边注意力在新图上正确率至少 95 %，且比两种全注意力都高 15 个百分点；GATv2 在每个 k "
        "上查字典正确率至少 95 %，而同样头数的 GAT 在最大的 k 上不足 95 %。"
        "只有一部分成立为有条件成立，都不成立为不成立。",
    ),
)

NODES, DIM = 16, 32


def measure(size: Size, seed: int, tell: Tell) -> dict[str, Any]:
    seeds = by_size(size, 1, 2, 5)
    lookups = by_size(size, [3], [4, 8, 12], [4, 8, 16, 24])
    runs = [one_seed(size, seed * 1000 + n, lookups, part(tell, n / seeds, (n + 1) / seeds)) for n in range(seeds)]
    kinds = list(runs[0]["lookup"])
    return {
        "sizes": lookups,
        "neighbours": {name: spread([run["neighbours"][name] for run in runs]) for name in runs[0]["neighbours"]},
        "lookup": {
            kind: {str(k): spread([run["lookup"][kind][str(k)] for run in runs]) for k in lookups} for kind in kinds
        },
        "distinct": {kind: spread([run["distinct"][kind] for run in runs]) for kind in kinds},
    }


def one_seed(size: Size, seed: int, lookups: list[int], tell: Tell) -> dict[str, Any]:
    steps = by_size(size, 5, 200, 800)
    edges = part(tell, 0.0, 0.3)
    asked = {"along edges": "edges", "full": "full", "full, told the edges": "told"}
    neighbours = {
        name: majority_run(how, steps, seed, nth(edges, n, 3, name)) for n, (name, how) in enumerate(asked.items())
    }
    found: dict[str, dict[str, float]] = {}
    distinct: dict[str, float] = {}
    kinds = {"GAT, 1 head": (1, 1), "GAT, 8 heads": (1, 8), "GATv2, 1 head": (2, 1), "GATv2, 8 heads": (2, 8)}
    for n, (name, (version, heads)) in enumerate(kinds.items()):
        found[name] = {}
        for m, k in enumerate(lookups):
            told = nth(part(tell, 0.3 + 0.7 * n / 4, 0.3 + 0.7 * (n + 1) / 4), m, len(lookups), f"{name}, k = {k}")
            found[name][str(k)], distinct[name] = lookup_run(version, heads, k, 2 * steps, seed, told)
    return {"neighbours": neighbours, "lookup": found, "distinct": distinct}


def majority_run(how: str, steps: int, seed: int, tell: Tell) -> float:
    """The share of nodes of new graphs that are answered right; the graphs that are learned from are 200."""
    torch.manual_seed(seed)
    model = Neighbours(how)
    known = [coloured(8) for _ in range(25)]

    def loss() -> Tensor:
        colours, joined, labels = known[int(torch.randint(len(known), ()))]
        return nn.functional.cross_entropy(model(colours, joined), labels)

    fit(model, loss, steps, 5e-3, tell, repeats=False)
    colours, joined, labels = coloured(100)
    with torch.no_grad():
        return accuracy(model(colours, joined), labels)


def coloured(graphs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Colours `[graphs · NODES]`, who is joined `[graphs, NODES, NODES]`, and whether most neighbours are red.

    Where a node has as many red as blue neighbours, a coin says which colour loses one.
    """
    colours = torch.randint(2, (graphs, NODES))
    joined = torch.rand(graphs, NODES, NODES) < 0.3
    joined = (joined | joined.mT) & ~torch.eye(NODES, dtype=torch.bool)
    red = (joined & (colours[:, None] == 1)).sum(-1)
    loses = joined & (colours[:, None] == torch.randint(2, (graphs, NODES))[..., None])
    graph, node = ((2 * red == joined.sum(-1)) & (red > 0)).nonzero().unbind(1)
    joined[graph, node, loses.float().argmax(-1)[graph, node]] = False
    red = (joined & (colours[:, None] == 1)).sum(-1)
    return colours.flatten(), joined, (2 * red > joined.sum(-1)).long().flatten()


class Neighbours(nn.Module):
    """One layer of GATv2 over the edges, over all pairs of a graph, or over all pairs with edges as features."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.colour = nn.Embedding(2, DIM)
        self.place = nn.Embedding(NODES, DIM)
        self.row = nn.Linear(NODES, DIM)
        self.layer = GraphAttention(DIM, DIM, heads=4, version=2, self_loops=False, residual=True)
        self.answer = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, 2))

    def forward(self, colours: Tensor, joined: Tensor) -> Tensor:
        graphs = joined.shape[0]
        x = self.colour(colours)
        if self.how == "told":
            x = x + self.row(joined.flatten(0, 1).float()) + self.place.weight.repeat(graphs, 1)
        allowed = joined if self.how == "edges" else torch.ones_like(joined)
        graph, target, source = allowed.nonzero().unbind(1)
        edges = torch.stack([source, target]) + graph * NODES
        return self.answer(self.layer(x, Edges(edges)))


def lookup_run(version: int, heads: int, k: int, steps: int, seed: int, tell: Tell) -> tuple[float, float]:
    """(share of look-ups right, distinct keys that the k queries of a graph look at most, as a share of k)."""
    torch.manual_seed(seed)
    model = LookUp(version, heads, k)
    fit(model, lambda: nn.functional.cross_entropy(*model.play(16)), steps, 1e-2, tell, repeats=False)
    with torch.no_grad(), watch(model, weights=True) as seen:
        right = accuracy(*model.play(16))
    weights = seen["layer"].weights[0]  # type: ignore[index]
    keys = weights.argmax(-1).unflatten(-1, (16, 2 * k))[:, :, k:]  # [heads, graphs, queries]
    counts = [len(one.unique()) / k for one in keys.flatten(0, 1)]
    return right, sum(counts) / len(counts)


class LookUp(nn.Module):
    """Keys with a name and a value, queries with a name; one graph attention layer and a linear answer."""

    def __init__(self, version: int, heads: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.names, self.values = nn.Embedding(k, DIM), nn.Embedding(k + 1, DIM)
        self.layer = GraphAttention(DIM, DIM, heads, version=1 if version == 1 else 2, self_loops=False)
        self.answer = nn.Linear(DIM, k)
        key, query = torch.arange(k), torch.arange(k, 2 * k)
        self.edges = torch.cartesian_prod(key, query).T  # [2, k · k]

    def play(self, graphs: int) -> tuple[Tensor, Tensor]:
        """Logits and true values of the queries of new graphs, `[graphs · k, k]` and `[graphs · k]`."""
        k = self.k
        values = torch.stack([torch.randperm(k) for _ in range(graphs)])
        keys = self.names.weight + self.values(values)
        queries = (self.names.weight + self.values.weight[k]).expand(graphs, -1, -1)
        nodes = torch.cat([keys, queries], 1)  # [graphs, 2 k, dim]
        edges = (self.edges[:, None] + 2 * k * torch.arange(graphs)[:, None]).flatten(1)
        y = self.layer(nodes.flatten(0, 1), Edges(edges)).unflatten(0, (graphs, 2 * k))
        return self.answer(y[:, k:]).flatten(0, 1), values.flatten()


def verdict(numbers: dict[str, Any]) -> Verdict:
    near = {name: one["mean"] for name, one in numbers["neighbours"].items()}
    edges, others = near["along edges"], max(near["full"], near["full, told the edges"])
    largest = str(numbers["sizes"][-1])
    newer = min(one["mean"] for one in numbers["lookup"]["GATv2, 8 heads"].values())
    older = numbers["lookup"]["GAT, 8 heads"][largest]["mean"]
    first, second = edges >= 0.95 and edges >= others + 0.15, newer >= 0.95 and older < 0.95
    kind = "holds" if first and second else "limited" if first or second else "fails"
    single = [numbers["lookup"][f"{name}, 1 head"][largest]["mean"] for name in ("GAT", "GATv2")]
    same = [numbers["distinct"][f"{name}, 1 head"]["mean"] for name in ("GAT", "GATv2")]
    key = Both(
        f"along edges {percent(edges)}, full {percent(others)}; look-up: GATv2 {percent(newer)}, GAT {percent(older)}",
        f"沿边 {percent(edges)}，全注意力 {percent(others)}；查字典：GATv2 {percent(newer)}，GAT {percent(older)}",
    )
    return Verdict(kind, key, Both(
        f"Along edges {percent(edges)} right on new graphs, full attention {percent(near['full'])}, told the edges "
        f"{percent(near['full, told the edges'])}. Look-up with 8 heads: GATv2 at least {percent(newer)} at every k, "
        "GAT "
        f"{percent(older)} at k = {largest}; with one head {percent(single[1])} and {percent(single[0])}. The "
        "queries of a "
        f"graph look most at {same[0]:.2f} k different keys in GAT, {same[1]:.2f} k in GATv2 (1 head).",
        f"沿边注意力在新图上正确率 {percent(edges)}，全注意力 {percent(near['full'])}，告知边的全注意力 "
        f"{percent(near['full, told the edges'])}。"
        f"查字典（8 个头）：GATv2 在每个 k 上至少 {percent(newer)}，GAT 在 k = {largest} 时为 {percent(older)}；"
        f"只有一个头时分别为 {percent(single[1])} 和 {percent(single[0])}。"
        f"一个图里的各个查询最关注的不同键的数目：GAT 为 {same[0]:.2f} k，GATv2 为 {same[1]:.2f} k（1 个头）。",
    ))  # fmt: skip


def draw(numbers: dict[str, Any], language: Language) -> Any:
    say = speaker(language)
    with panels(language, 3, width=4.0) as (figure, (left, middle, right)):
        figure.suptitle(say("Answers that follow edges, and looking up a dictionary", "沿边的答案，以及查字典"))
        names = [
            say("along\nedges", "沿边"),
            say("full", "全注意力"),
            say("full, told\nthe edges", "全注意力\n（告知边）"),
        ]
        bars(left, names, {"": list(numbers["neighbours"].values())})
        level(left, 0.5, say("chance", "随机"))
        left.legend(fontsize=7)
        name_axes(
            left,
            say("Are most neighbours red? (new graphs)", "多数邻居是红色吗？（新图）"),
            "",
            say("share right", "正确率"),
        )
        for n, (kind, found) in enumerate(numbers["lookup"].items()):
            line(middle, n, numbers["sizes"], [found[str(k)] for k in numbers["sizes"]], heads_named(kind, language))
        middle.plot(numbers["sizes"], [1 / k for k in numbers["sizes"]], color="#666666", linewidth=0.9, label="1 / k")
        middle.set_xticks(numbers["sizes"])
        middle.set_ylim(0, 1.5)
        name_axes(
            middle, say("Dictionary look-up", "查字典"), say("keys k", "键的数目 k"), say("share right", "正确率")
        )
        middle.legend(fontsize=7, ncols=2, loc="upper center")
        kinds = [heads_named(kind, language).replace(", ", "\n").replace("，", "\n") for kind in numbers["distinct"]]
        bars(right, kinds, {"": list(numbers["distinct"].values())})
        title = say("Different keys that the queries look at most", "各查询最关注的不同键")
        name_axes(
            right, title, "", say(f"share of k = {numbers['sizes'][-1]}", f"占 k = {numbers['sizes'][-1]} 的比例")
        )
    return figure


def heads_named(kind: str, language: Language) -> str:
    """The name of a kind of layer in a language."""
    if language == "en":
        return kind
    return kind.replace(", ", "，").replace("heads", "个头").replace("head", "个头")
