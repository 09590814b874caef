"""The page of the documentation with every kind of label beside the obvious alternative, from results/*.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"en": DOCS / "label-results.md", "zh": DOCS / "label-results.zh.md"}

ROWS = {
    "labels of a text": ("several labels of a text", "一段文本的多个标签", "emoji_text: keywords of an emoji by its name", "emoji_text：由名称得到表情的关键词", "micro F1", "classify"),
    "number of a text": ("a number of a text", "一段文本的数值", "SST-5: 0 to 4, dev", "SST-5：0 到 4，dev", "R²", "classify --set target=number"),
    "pairs": ("pairs of texts", "文本对", "Flickr8k: do two captions describe one photograph?", "Flickr8k：两条描述是否说同一张照片", "accuracy", "pairs --from MiniLM"),
    "ranking": ("ranking", "排序", "Flickr8k: which of five captions describes the same photograph?", "Flickr8k：五条描述中哪一条说同一张照片", "MRR", "rank --from MiniLM"),
    "answers": ("answers from a passage", "从文章中找答案", "GAP: the name that a pronoun stands for", "GAP：代词所指的名字", "exact match", "answer --from MiniLM"),
    "tags": ("tags of words", "词的标记", "English Web Treebank, 2,000 sentences", "英语网络树库，2,000 句", "accuracy", "tag"),
    "spans": ("spans", "片段", "English Web Treebank: runs of proper nouns and of numbers", "英语网络树库：连续的专有名词与数词", "F1", "spans"),
    "nodes": ("nodes of a graph", "图的节点", "Cora, public split", "Cora，公开划分", "accuracy", "nodes"),
    "number of a graph": ("a number of a graph", "一张图的数值", "ESOL: solubility, other scaffolds", "ESOL：溶解度，其他骨架", "RMSE (lower is better)", "graphs"),
    "class of an image": ("a class of an image", "图像的类别", "scikit-learn's digits, the last 360", "scikit-learn 的手写数字，最后 360 张", "accuracy", "classify"),
    "class of a recording": ("a class of a recording", "录音的类别", "spoken digits (FSDD), official split", "口语数字（FSDD），官方划分", "accuracy", "classify"),
}  # fmt: skip
"""Of each row of labels.json: the kind of label and the data in both languages, the metric, the command."""

WORDS = {
    "en": {
        "title": "Every kind of label",
        "intro": "Each kind of label with the defaults of `regard train`, beside the obvious alternative on the same "
        "examples, measured in one run. `python benchmarks/labels.py --write` generates this page from "
        "`benchmarks/results/*.json`; the sections name the commands that measure again.",
        "head": ("label", "data", "command", "metric", "Regard", "the alternative"),
        "few": "Few texts",
        "few text": "A class of a text, `python benchmarks/small_text.py --data DIR`. Accuracy on a held-out stratified "
        "share of 0.15, each text once. Regard holds out a tenth of its training texts to choose by; scikit-learn has "
        "all of them. TF-IDF with defaults is `TfidfVectorizer()` and `LogisticRegression()` (characters for Chinese); "
        "the best TF-IDF is the best of four, chosen by the held-out texts themselves. Means over the splits; the "
        "standard error of one accuracy is about one point.",
        "few head": ("data", "texts", "splits", "Regard", "TF-IDF, defaults", "best TF-IDF", "CPU seconds of Regard"),
        "kinds": "Other kinds",
        "kinds text": "`python benchmarks/labels.py --data DIR`. CPU seconds of training in brackets. The sets are "
        "small, so that each row lasts a few CPU minutes: differences of one or two points may be chance.",
        "tables": "Tables",
        "tables text": "`python benchmarks/tables.py`: means over five folds.",
        "tables head": ("data", "metric", "Regard, attention", "Regard, MLP", "gradient boosting", "linear model"),
        "tune": "From a checkpoint",
        "tune text": "MiniLM (`all-MiniLM-L6-v2`) fine-tuned by `--from` and by transformers' Trainer, "
        "`python benchmarks/finetune.py --model DIR --data DIR` on {device}. Seconds of training in brackets, of the processor on a CPU. Both have the same learning rate unless a "
        "column names another. Of TREC a tenth of the training data is held out; the others are scored on dev. The goals "
        "are {goals}.",
        "tune head": "data",
        "embed": "Sentence vectors",
        "embed text": "`python benchmarks/embed.py`: {texts} texts, largest difference {difference:.0e}. Regard needs "
        "{ours:.2f} CPU seconds, sentence-transformers {theirs:.2f}: {times} times less.",
        "serve": "Serving",
        "serve text": "`python benchmarks/serve.py`: {model}. Requests a second, median milliseconds in brackets.",
        "serve head": ("clients", "regard serve", "FastAPI + transformers"),
        "missing": "What is not measured",
        "later": "`labels.py` compares these too, but they have no result yet: {}.",
        "missing text": "No freely usable set is at hand for entailment (NLI), graded similarity (STS), question answering "
        "in SQuAD's form or hand-made names (NER). The rows of pairs, ranking, answers and spans are made of other sets, "
        "as the table says. `translate --from` (T5, Marian), `lm --from` (GPT-2, Llama), ViT and Whisper are tested with "
        "small random checkpoints only; their scores are not measured. Several labels and numbers of images and "
        "recordings, and several tasks with one encoder, are tested but have no row here.",
    },
    "zh": {
        "title": "各种标签",
        "intro": "每种标签都用 `regard train` 的默认设置训练，与最容易想到的其他办法在同样的样本上比较，一次运行测得。"
        "本页由 `python benchmarks/labels.py --write` 根据 `benchmarks/results/*.json` 生成；各节写明重新测量的命令。",
        "head": ("标签", "数据", "命令", "指标", "Regard", "其他办法"),
        "few": "少量文本",
        "few text": "文本的类别，`python benchmarks/small_text.py --data DIR`。在分层留出的 0.15 上的准确率，每段文本只出现一次。"
        "Regard 再留出十分之一的训练文本用于选择；scikit-learn 用全部训练文本。“TF-IDF，默认”是 `TfidfVectorizer()` 加 "
        "`LogisticRegression()`（中文按字符）；“最好的 TF-IDF”是四种之中的最好者，直接按留出文本挑选。数值是各种划分的均值；单个准确率的标准误约为一个百分点。",
        "few head": ("数据", "文本数", "划分数", "Regard", "TF-IDF，默认", "最好的 TF-IDF", "Regard 的 CPU 秒数"),
        "kinds": "其他种类",
        "kinds text": "`python benchmarks/labels.py --data DIR`。括号内是训练的 CPU 秒数。数据都取得较小，每行只需几分钟 CPU 时间："
        "一两个百分点的差别可能只是偶然。",
        "tables": "表格",
        "tables text": "`python benchmarks/tables.py`：五折的均值。",
        "tables head": ("数据", "指标", "Regard，注意力", "Regard，MLP", "梯度提升", "线性模型"),
        "tune": "从检查点开始",
        "tune text": "MiniLM（`all-MiniLM-L6-v2`），分别用 `--from` 和 transformers 的 Trainer 微调，"
        "`python benchmarks/finetune.py --model DIR --data DIR`，设备 {device}。括号内是训练秒数，在 CPU 上是处理器时间。除非列名另有说明，两边的学习率相同。"
        "TREC 留出十分之一的训练数据，其余用 dev 评分。目标是 {goals}。",
        "tune head": "数据",
        "embed": "句向量",
        "embed text": "`python benchmarks/embed.py`：{texts} 段文本，最大差别 {difference:.0e}。Regard 用 {ours:.2f} CPU 秒，"
        "sentence-transformers 用 {theirs:.2f} 秒：少 {times} 倍。",
        "serve": "服务",
        "serve text": "`python benchmarks/serve.py`：{model}。每秒请求数，括号内是中位毫秒数。",
        "serve head": ("客户端数", "regard serve", "FastAPI + transformers"),
        "missing": "没有测量的",
        "later": "`labels.py` 也比较以下各项，但还没有结果：{}。",
        "missing text": "手头没有可自由使用的蕴含（NLI）、相似度评分（STS）、SQuAD 形式的问答和人工标注的人名地名（NER）数据；"
        "文本对、排序、答案和片段各行用的是其他数据，见表中说明。`translate --from`（T5、Marian）、`lm --from`（GPT-2、Llama）、"
        "ViT 和 Whisper 只用很小的随机检查点测试过，没有测量得分。图像和录音的多个标签与数值，以及一个编码器做多个任务，"
        "都有测试，但这里没有对应的行。",
    },
}
METRICS = {
    "accuracy": "准确率",
    "exact match": "完全匹配",
    "RMSE (lower is better)": "RMSE（越低越好）",
    "micro F1": "微平均 F1",
}
SIDES = {
    "scikit-learn: TF-IDF, ridge regression": "scikit-learn：TF-IDF，岭回归",
    "scikit-learn: TF-IDF of characters, logistic regressions": "scikit-learn：字符 TF-IDF，逻辑回归",
    "scikit-learn: cosine of TF-IDF, logistic regression": "scikit-learn：TF-IDF 余弦，逻辑回归",
    "scikit-learn: cosine of TF-IDF": "scikit-learn：TF-IDF 余弦",
    "the nearer of the two names before the pronoun": "代词之前两个名字中较近的一个",
    "spaCy: tagger": "spaCy：词性标注",
    "spaCy: named entities": "spaCy：命名实体",
    "PyG: GAT": "PyG：GAT",
    "scikit-learn: gradient boosting of Morgan fingerprints": "scikit-learn：Morgan 指纹的梯度提升",
    "scikit-learn: support vectors": "scikit-learn：支持向量机",
    "scikit-learn: logistic regression": "scikit-learn：逻辑回归",
}
DEFAULT_RATE = "regard, learning_rate 2e-4 (the default since)"
CHINESE_DATA = {"breast cancer": "乳腺癌", "wine": "葡萄酒", "diabetes": "糖尿病"}


def load(name: str) -> Any:
    """A file of results; None where it is not there."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf8")) if path.is_file() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def side_text(side: Mapping[str, float]) -> str:
    """A score, with the seconds of training where there are any."""
    seconds = f" ({side['seconds']:.0f} s)" if side["seconds"] else ""
    return f"{side['score']:.3f}{seconds}"


def few_texts(words: Mapping[str, Any]) -> list[str]:
    document = load("small_text")
    if document is None:
        return []
    rows = []
    for name in dict.fromkeys(row["data"] for row in document["rows"]):
        own = [row for row in document["rows"] if row["data"] == name]
        scores = [mean(row["regard"]["accuracy"] for row in own)]
        scores.append(mean(row["scikit-learn"]["defaults"] for row in own))
        scores.append(mean(max(row["scikit-learn"].values()) for row in own))
        cells = [f"{100 * score:.1f}" for score in scores]
        seconds = mean(row["regard"]["CPU seconds"] for row in own)
        rows.append([name, f"{own[0]['train']:,}", str(len(own)), f"**{cells[0]}**", *cells[1:], f"{seconds:.0f}"])
    return [f"## {words['few']} {{#few}}", "", words["few text"], "", *table(words["few head"], rows), ""]


def other_kinds(words: Mapping[str, Any], chinese: bool) -> list[str]:
    document = load("labels")
    rows = []
    for name, (label, label_zh, data, data_zh, metric, command) in ROWS.items():
        if document is None or name not in document["rows"]:
            continue
        sides = document["rows"][name]
        ours = [side_text(side) for key, side in sides.items() if key.startswith("regard")]
        others = [
            f"{SIDES.get(key, key) if chinese else key} {side_text(side)}"
            for key, side in sides.items()
            if not key.startswith("regard")
        ]
        shown = (label_zh, data_zh) if chinese else (label, data)
        rows.append(
            [*shown, f"`{command}`", METRICS.get(metric, metric) if chinese else metric, *ours, "; ".join(others)]
        )
    return [f"## {words['kinds']} {{#kinds}}", "", words["kinds text"], "", *table(words["head"], rows), ""]


def tables_section(words: Mapping[str, Any], chinese: bool) -> list[str]:
    rows = []
    for name, own in load("tables").items():
        metric = "accuracy" if "accuracy" in next(iter(own["models"].values())) else "RMSE"
        cells = [f"{model[metric]['mean']:.3f} ± {model[metric]['deviation']:.3f}" for model in own["models"].values()]
        rows.append(
            [CHINESE_DATA[name] if chinese else name, METRICS.get(metric, metric) if chinese else metric, *cells]
        )
    return [f"## {words['tables']} {{#tables}}", "", words["tables text"], "", *table(words["tables head"], rows), ""]


def fine_tuning(words: Mapping[str, Any]) -> list[str]:
    document, rows = load("finetune"), []
    every = {name: named_sides(own) for name, own in document["tasks"].items()}
    names = list(dict.fromkeys(side for sides in every.values() for side in sides))
    for name, own in every.items():
        sides = [own.get(side) for side in names]
        cells = ["" if side is None else f"{side['score']:.1f} ({side['median seconds']:.1f} s)" for side in sides]
        rows.append([name, *cells])
    goals = dict.fromkeys(f"{name.split()[0]} {own['goal']:g}" for name, own in document["tasks"].items())
    devices = dict.fromkeys(own["devices"][-1] for own in document["tasks"].values())
    text = words["tune text"].format(device=", ".join(devices), goals=", ".join(goals))
    return [f"## {words['tune']} {{#from}}", "", text, "", *table([words["tune head"], *names], rows), ""]


def named_sides(task: Mapping[str, Any]) -> dict[str, Any]:
    """The results of each side; ours is named after its learning rate where that is not the Trainer's."""
    ours, theirs = (task["settings"][side]["learning_rate"] for side in ("regard", "transformers"))
    name = "regard" if ours == theirs else DEFAULT_RATE
    return {name if side == "regard" else side: result for side, result in task["sides"].items()}


def in_use(words: Mapping[str, Any]) -> list[str]:
    vectors, document, rows = next(iter(load("embed")["rows"].values())), load("serve"), []
    seconds = vectors["median processor seconds"]
    text = words["embed text"].format(
        texts=vectors["texts"],
        difference=vectors["largest difference"],
        ours=seconds["regard"],
        theirs=seconds["sentence-transformers"],
        times=vectors["times less of the processor"],
    )
    for row in document["rows"]:
        sides = [row["regard serve"], row["FastAPI + transformers"]]
        cells = [f"{side['requests_per_second']:.0f} ({side['p50_ms']:.0f} ms)" for side in sides]
        rows.append([str(row["clients"]), *cells])
    serving = words["serve text"].format(model=document["model"])
    head = [f"## {words['embed']} {{#embed}}", "", text, "", f"## {words['serve']} {{#serve}}", "", serving, ""]
    return [*head, *table(words["serve head"], rows), ""]


def page(language: str) -> str:
    words, chinese = WORDS[language], language == "zh"
    lines = [f"# {words['title']}", "", words["intro"], ""]
    lines += few_texts(words) + other_kinds(words, chinese) + tables_section(words, chinese)
    lines += fine_tuning(words) + in_use(words)
    measured = load("labels")["rows"]
    unmeasured = [row[1 if chinese else 0] for name, row in ROWS.items() if name not in measured]
    later = [words["later"].format(("、" if chinese else ", ").join(unmeasured))] if unmeasured else []
    text = ("" if chinese else " ").join([words["missing text"], *later])
    lines += [f"## {words['missing']} {{#missing}}", "", text]
    return "\n".join(lines) + "\n"


def write_pages() -> None:
    """Write the page in both languages."""
    for language, path in PAGES.items():
        path.write_text(page(language), "utf8")
