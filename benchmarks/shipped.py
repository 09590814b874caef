"""Measures the shipped models: the figures of their cards that `regard evaluate` does not print.

python benchmarks/shipped.py --data DIR [--runs FOLDER] tagger-zh poet translator-zh-en writer emoji

DIR holds the data sets as published and the files that `benchmarks/prepare.py DIR DIR` writes. FOLDER holds runs under
these names, instead of the shipped ones. The figures are printed and kept in results/shipped.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import regard as rg
from regard.tasks.metrics.segmentation import LongestMatch, segmentation_scores
from regard.tasks.metrics.verse import VerseRules, even_couplet_share, is_regular, rhyme_characters, verse_lines
from regard.train.run import open_run

RESULTS = Path(__file__).parent / "results" / "shipped.json"


def head_weights(model: Any, tokens: Tensor) -> Tensor:
    """The attention weights of all heads, `[layers, batch, heads, queries, keys]`."""
    with torch.no_grad(), rg.watch(model, weights=True) as views:
        model(tokens=tokens)
    return torch.stack([view.weights for view in views.values() if view.weights is not None])


def best_heads(scores: Tensor, count: int = 3) -> list[dict[str, Any]]:
    """The heads of largest score `[layers, heads]`; layers and heads count from 0."""
    values, order = scores.flatten().sort(descending=True)
    heads = scores.shape[1]
    return [
        {"layer": int(n) // heads, "head": int(n) % heads, "score": round(float(value), 3)}
        for value, n in zip(values[:count], order[:count], strict=True)
    ]


def measure_tagger(run: str, data: Path) -> dict[str, Any]:
    """F1 of the model and of the dictionary of the training words, on the same sentences."""
    task, model, _ = open_run(run)
    train, dev = (
        task.read([data / "ud_chinese_small" / f"{split}.conllu.gz"], task.settings).examples
        for split in ("train", "dev")
    )
    texts = ["".join(example.words) for example in dev]
    dictionary = LongestMatch(train)
    known = {word for example in train for word in example.words}
    unseen = [word for example in dev for word in example.words if word not in known]
    return {
        "scores": task.evaluate(model, dev).metrics,
        "longest match": segmentation_scores(dev, [dictionary(text) for text in texts])[0],
        "words": sum(len(example.words) for example in dev),
        "unknown words": len(unseen) / sum(len(example.words) for example in dev),
    }


def measure_poet(run: str, data: Path, count: int = 400) -> dict[str, Any]:
    """Loss beside an n-gram model, what the written poems keep of the rules, and the heads that mirror and rhyme."""
    task, model, _ = open_run(run)
    train, dev = ((data / "tang_poems" / f"{split}.txt").read_text("utf8").splitlines() for split in ("train", "dev"))
    rules = VerseRules.from_poems(train)
    written = write_poems(task, model, dev, count)
    real = [poem for poem in dev if is_regular(poem)]
    rng = Random(0)
    ends = [character for poem in dev for character in rhyme_characters(poem)]
    chance = sum(rules.rhyme(rng.choice(ends), rng.choice(ends)) for _ in range(10_000)) / 10_000
    return {
        "loss": language_model_losses(task, model, data / "tang_poems"),
        "written": verse_figures(written, rules),
        "of the dev poems": verse_figures(dev, rules),
        "rhymes of random line ends": chance,
        "poems that a training poem contains a couplet of": copied_share(written, train),
        "heads": poem_heads(task, model, real[:300]),
        "examples": written[:4],
    }


def verse_figures(poems: Sequence[str], rules: VerseRules) -> dict[str, float]:
    return {
        "poems": len(poems),
        "regular": sum(map(is_regular, poems)) / len(poems),
        "couplets of one length": even_couplet_share(poems),
        "rhymes that hold": rules.rhyme_share(poems),
        "parallel middle couplets": rules.parallel_share(poems),
    }


def write_poems(task: Any, model: Any, dev: Sequence[str], count: int) -> list[str]:
    """Poems that the model writes after the first lines of other poems, as `regard predict` does."""
    prompts = [verse_lines(poem)[0] for poem in dev[:count]]
    poems: dict[str, str] = {}
    for size in sorted({len(prompt) for prompt in prompts}):
        same = list(dict.fromkeys(prompt for prompt in prompts if len(prompt) == size))
        tokens = torch.tensor([list(task.encode("\n" + prompt)) for prompt in same])
        generator = torch.Generator().manual_seed(0)
        sampling = {"temperature": task.settings.temperature, "top_k": task.settings.top_k, "generator": generator}
        rows = model.generate(tokens=tokens, max_new=task.settings.max_new, end=(), **sampling)
        texts = [task.tokenizer.decode(row.tolist()[1:]) for row in rows]
        poems |= {prompt: text.split("\n")[0] for prompt, text in zip(same, texts, strict=True)}
    return list(poems.values())


def copied_share(written: Sequence[str], train: Sequence[str]) -> float:
    """The share of poems of which two lines in a row, besides the prompt, stand in one of the training poems."""
    known = {pair for poem in train for pair in pairwise(verse_lines(poem))}
    return sum(any(pair in known for pair in pairwise(verse_lines(poem)[1:])) for poem in written) / len(written)


def poem_heads(task: Any, model: Any, poems: Sequence[str]) -> dict[str, Any]:
    """The heads with the largest mean weight on a place that the form of a poem gives a meaning.

    mirror: from a character of the second line of a couplet to the character at the same position in the first. next
    mirror: to the one at the position that is to be written next. rhyme: from the character before the end of lines 4,
    6, 8 to the last characters of the even lines before, together.
    """
    forms: dict[tuple[int, int], list[str]] = {}
    for poem in poems:
        forms.setdefault((len(verse_lines(poem)[0]), len(verse_lines(poem))), []).append(poem)
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for (size, lines), same in forms.items():
        weights = head_weights(model, torch.tensor([list(task.encode("\n" + poem)) for poem in same])).mean(1)
        step = size + 1
        starts = [1 + step * n for n in range(lines)]
        cells: dict[str, list[tuple[int, list[int]]]] = {f"mirror {size}": [], f"next mirror {size}": [], "rhyme": []}
        for start in starts[1::2]:
            cells[f"mirror {size}"] += [(start + p, [start + p - step]) for p in range(size)]
            cells[f"next mirror {size}"] += [(start + p, [start + p + 1 - step]) for p in range(size - 1)]
        for n in range(3, lines, 2):
            cells["rhyme"].append((starts[n] + size - 2, [starts[k] + size - 1 for k in range(1, n, 2)]))
        for name, places in cells.items():
            for query, keys in places:
                sums[name] = sums.get(name, torch.zeros(())) + len(same) * weights[:, :, query, keys].sum(-1)
                counts[name] = counts.get(name, 0) + len(same)
    return {name: best_heads(total / counts[name]) for name, total in sums.items()}


def measure_writer(run: str, data: Path) -> dict[str, Any]:
    """Loss beside an n-gram model, and how the model copies random tokens that come again."""
    task, model, _ = open_run(run)
    return {"loss": language_model_losses(task, model, data / "writer"), "induction": induction(task, model)}


def induction(task: Any, model: Any, rows: int = 64, size: int = 64) -> dict[str, Any]:
    """Random tokens twice in a row: mean loss of each half, and the heads that look at the token after the last time.

    The score of a head is its mean weight from a token of the second half to the token after the same token in the
    first half; the previous-token score is that from each token to the one before it.
    """
    generator = torch.Generator().manual_seed(0)
    passage = torch.randint(3, task.tokenizer.size, (rows, size), generator=generator)
    tokens = torch.cat([torch.full((rows, 1), task.end), passage, passage], 1)
    with torch.no_grad():
        logits = model(tokens=tokens[:, :-1]).logits
    losses = functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
    weights = head_weights(model, tokens)
    queries = torch.arange(size + 1, 2 * size)
    copying = weights[..., queries, queries - size + 1].mean((1, 3))
    every = torch.arange(1, 2 * size)
    return {
        "loss of the first half": float(losses[:, :size].mean()),
        "loss of the second half": float(losses[:, size + 1 :].mean()),
        "induction heads": best_heads(copying),
        "previous-token heads": best_heads(weights[..., every, every - 1].mean((1, 3))),
    }


def language_model_losses(task: Any, model: Any, folder: Path) -> dict[str, float]:
    """Nats of a token of dev.txt, by the model and by n-gram models of the same tokens."""
    from regard.models.baselines.ngram import NgramModel

    train, dev = (task.read([folder / f"{split}.txt"], task.settings).examples for split in ("train", "dev"))
    numbers = task.numbers(train)
    figures = {"model": task.evaluate(model, dev).metrics["loss"]}
    for order in (2, 3):
        figures[f"{order}-gram"] = task.evaluate(
            NgramModel.from_tokens(numbers, task.tokenizer.size, order), dev
        ).metrics["loss"]
    return figures


def measure_translator(run: str, data: Path) -> dict[str, Any]:
    """BLEU and chrF on all sentences and on those whose source is not in the training data, beside retrieval."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    task, model, _ = open_run(run)
    train, dev = (
        task.read([data / "tatoeba-en-zh" / f"{split}.tsv"], task.settings).examples for split in ("train", "dev")
    )
    sources = {example.source for example in train}
    new = [example for example in dev if example.source not in sources]
    translations = [result.text for result in task.predict(model, [example.source for example in dev])]
    nearest = retrieve([example.source for example in dev], train)
    figures: dict[str, Any] = {"sentences": len(dev), "of which new": len(new)}
    for name, hypotheses in (("model", translations), ("nearest training sentence", nearest)):
        for part, chosen in (("all", dev), ("new", new)):
            pairs = [(h, e) for h, e in zip(hypotheses, dev, strict=True) if part == "all" or e.source not in sources]
            texts, references = [h for h, _ in pairs], [[e.target for _, e in pairs]]
            scores = {"bleu": BLEU().corpus_score(texts, references), "chrf": CHRF().corpus_score(texts, references)}
            figures[f"{name}, {part}"] = {metric: round(score.score, 2) for metric, score in scores.items()}
            assert len(pairs) == len(chosen)
    return figures


def retrieve(sources: Sequence[str], train: Sequence[Any]) -> list[str]:
    """The translation of the training sentence that shares most character pairs with each source (Dice)."""
    grams: Callable[[str], set[str]] = lambda text: {text[n : n + 2] for n in range(max(1, len(text) - 1))}  # noqa: E731
    index: dict[str, list[int]] = {}
    sizes = []
    for n, example in enumerate(train):
        sizes.append(len(grams(example.source)))
        for gram in grams(example.source):
            index.setdefault(gram, []).append(n)
    translations = []
    for source in sources:
        own, shared = grams(source), {}
        for gram in own:
            for n in index.get(gram, ()):
                shared[n] = shared.get(n, 0) + 1
        best = max(shared, key=lambda n: 2 * shared[n] / (len(own) + sizes[n]), default=0)
        translations.append(train[best].target)
    return translations


def measure_emoji(run: str, data: Path) -> dict[str, Any]:
    """Accuracy on held-out emoji, beside the nearest training image and the most frequent class."""
    import numpy as np

    task, model, _ = open_run(run)
    z = np.load(data / "emoji_text/classes.npz")
    reading = task.read([data / "emoji_text/classes.npz"], task.settings).select("test")
    x, label, test = z["x"].reshape(len(z["x"]), -1).astype("float32"), z["label"], z["is_test"]
    distance = torch.cdist(torch.from_numpy(x[test]), torch.from_numpy(x[~test]))
    nearest = label[~test][distance.argmin(1).numpy()]
    names, counts = np.unique(label[~test], return_counts=True)
    scores = task.evaluate(model, reading.examples)
    return {
        "images": int(test.sum()),
        "scores": scores.metrics,
        "per class": {name: round(row["F1"], 3) for name, row in scores.details["per class"].items()},
        "nearest image": float((nearest == label[test]).mean()),
        "most frequent class": float((label[test] == names[counts.argmax()]).mean()),
    }


MEASURES: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "tagger-zh": measure_tagger,
    "poet": measure_poet,
    "translator-zh-en": measure_translator,
    "writer": measure_writer,
    "emoji": measure_emoji,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all unless given")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--runs", type=Path, help="folder of runs to measure instead of the shipped ones")
    arguments = parser.parse_args()
    figures = json.loads(RESULTS.read_text("utf8")) if RESULTS.is_file() and arguments.runs is None else {}
    for name in arguments.names or MEASURES:
        figures[name] = MEASURES[name](name if arguments.runs is None else str(arguments.runs / name), arguments.data)
        print(json.dumps({name: figures[name]}, ensure_ascii=False, indent=1), flush=True)
        if arguments.runs is None:
            RESULTS.write_text(json.dumps(figures, ensure_ascii=False, indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main()
