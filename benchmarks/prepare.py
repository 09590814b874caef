"""Writes the training files of shipped models from data sets as they are published.

python benchmarks/prepare.py DATA OUT

DATA holds tang_poems/{train,dev}.tsv.gz, tatoeba-en-zh/{train,dev}.tsv, ud_english_ewt/en_ewt-ud-{train,dev}.conllu.gz,
ud_chinese_small/train.conllu.gz, tiny_shakespeare/input.txt.gz and emoji_text/emoji_text.npz. OUT gets
tang_poems/{train,dev}.txt, a poem on each line; writer/{train,dev}.txt, running English; chinese/texts.txt, sentences
and poems without tags; emoji_text/classes.npz, images with a class.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from random import Random

CLASSES = {
    "face": ("face-", "cat-face", "monkey-face"),
    "heart": ("heart",),
    "hand": ("hand",),
    "person": ("person", "family"),
    "animal": ("animal-",),
    "food": ("food-", "drink"),
    "building": ("place-building", "place-religious"),
    "vehicle": ("transport-air", "transport-ground", "transport-water"),
    "clock": ("time",),
    "sky": ("sky-weather",),
    "arrow": ("arrow",),
    "sign": ("alphanum", "av-symbol", "keycap", "transport-sign", "warning", "zodiac", "religion"),
}
"""The subgroups of Unicode's emoji list, by their beginnings, of each class; other subgroups are left out."""


def write_poems(data: Path, out: Path) -> None:
    """One poem on each line; its lines end with ， and 。."""
    for split in ("train", "dev"):
        with gzip.open(data / "tang_poems" / f"{split}.tsv.gz", "rt", encoding="utf8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        column = rows[0].index("text")
        write(out / "tang_poems" / f"{split}.txt", [row[column] for row in rows[1:]])


def write_chinese(data: Path, out: Path) -> None:
    """The Chinese sentences of Tatoeba and of the treebank, and the poems: all of training data."""
    tatoeba = (data / "tatoeba-en-zh/train.tsv").read_text("utf8").splitlines()[1:]
    with gzip.open(data / "ud_chinese_small/train.conllu.gz", "rt", encoding="utf8") as file:
        treebank = [line.removeprefix("# text = ").rstrip("\n") for line in file if line.startswith("# text = ")]
    poems = (out / "tang_poems/train.txt").read_text("utf8").splitlines()
    write(out / "chinese/texts.txt", [*(line.split("\t")[1] for line in tatoeba), *treebank, *poems])


def write_english(data: Path, out: Path) -> None:
    """The web texts of EWT, the English sentences of Tatoeba in random order, and Shakespeare (the last tenth: dev)."""
    shakespeare = gzip.decompress((data / "tiny_shakespeare/input.txt.gz").read_bytes()).decode("utf8")
    cut = shakespeare.index("\n\n", len(shakespeare) * 9 // 10) + 2
    parts = {"train": shakespeare[:cut], "dev": shakespeare[cut:]}
    for split, part in parts.items():
        tatoeba = (data / "tatoeba-en-zh" / f"{split}.tsv").read_text("utf8").splitlines()[1:]
        sentences = list(dict.fromkeys(line.split("\t")[0] for line in tatoeba))
        Random(0).shuffle(sentences)
        write(out / "writer" / f"{split}.txt", [*web_texts(data, split), "", *sentences, "", *part.splitlines()])


def web_texts(data: Path, split: str) -> list[str]:
    """The sentences of EWT, a blank line between documents."""
    lines: list[str] = []
    with gzip.open(data / "ud_english_ewt" / f"en_ewt-ud-{split}.conllu.gz", "rt", encoding="utf8") as file:
        for line in file:
            if line.startswith("# newdoc") and lines:
                lines.append("")
            if line.startswith("# text = "):
                lines.append(line.removeprefix("# text = ").rstrip("\n"))
    return lines


def write_emoji(data: Path, out: Path) -> None:
    """Every emoji of a class in both drawing styles, on white; both drawings of an emoji are in the same split."""
    import numpy as np

    z = np.load(data / "emoji_text/emoji_text.npz")
    names = [emoji_class(str(subgroup)) for subgroup in z["subgroup"]]
    rows = np.array([n for n, name in enumerate(names) if name])
    images = []
    for style in ("noto", "openmoji"):
        colour, alpha = z[style][rows, ..., :3].astype("float32"), z[style][rows, ..., 3:] / 255.0
        images.append((colour * alpha + 255 * (1 - alpha)).round().astype("uint8"))
    labels = np.array([names[n] for n in rows])
    repeated = {"label": labels, "name": z["name"][rows], "is_test": z["is_test"][rows]}
    target = out / "emoji_text/classes.npz"
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.concatenate([array, array]) for name, array in repeated.items()}
    np.savez_compressed(target, allow_pickle=False, x=np.concatenate(images), **arrays)


def emoji_class(subgroup: str) -> str | None:
    return next((name for name, starts in CLASSES.items() if subgroup.startswith(starts)), None)


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf8")


if __name__ == "__main__":
    for make in (write_poems, write_chinese, write_english, write_emoji):
        make(Path(sys.argv[1]), Path(sys.argv[2]))
