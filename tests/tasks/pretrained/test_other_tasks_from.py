"""`--from` for tags, language models, translation, matching, images and recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard as rg
from regard.lab.inputs.prepare import prepare
from regard.models.families.bert import bert
from regard.models.families.clip import clip
from regard.models.families.gpt2 import gpt2
from regard.models.families.t5 import t5
from regard.models.families.vit import vit
from regard.models.families.whisper import whisper
from regard.models.generation.rules import TokenRules
from regard.models.tokenizers.tokenizer import Tokenizer
from regard.models.tokenizers.training import Special
from regard.tasks.pretrained.pixels import ImageProcessor
from regard.train.commands import train_from_files
from regard.train.run import RunConfig, open_run

TEXTS = ["the old cat is here", "the new dog is there", "a big horse runs", "the cat sees the dog", "a mouse is here"]


def run_steps(task: str, folder: Path, train: list[Path], out: Path, **changes: Any) -> RunConfig:
    """Train two steps from a checkpoint."""
    given = {"checkpoint": str(folder), "device": "cpu", "steps": 2, "epochs": None, **changes}
    config = RunConfig.from_changes(task, given, train=train, dev=train)
    train_from_files(config, out)
    return config


def initial_model(config: RunConfig) -> Any:
    """The model of a run before it is trained."""
    task = config.prepare(config.task.read(config.train, config.settings).examples)
    model = task.config(config.architecture).build()
    task.initialize(model)
    return model.eval()


def test_tags_are_those_of_words(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(TEXTS, unit="wordpiece", size=40, lower=True)
    model = bert(layers=1, dim=16, heads=2, hidden=32, vocabulary=tokenizer.size, positions=24).build()
    model.tokenizer = tokenizer
    model.save(tmp_path / "bert", format="huggingface")
    data, sizes = tmp_path / "tags.conllu", 0
    rows = []
    for text in TEXTS * 4:
        rows += [
            f"{n}\t{word}\t_\t{'NOUN' if len(word) > 3 else 'DET'}" + "\t_" * 6
            for n, word in enumerate(text.split(), 1)
        ]
        rows.append("")
        sizes += len(text.split())
    data.write_text("\n".join(rows) + "\n", "utf8")
    run_steps("tag", tmp_path / "bert", [data], tmp_path / "run", steps=60, learning_rate=1e-3, batch_size=8)
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["metrics"]["accuracy"] > 0.95
    task, model, _ = open_run(tmp_path / "run")
    (result,) = task.predict(model, ["the horse is here"])
    assert result.to_dict()["tags"] == ["DET", "NOUN", "DET", "NOUN"]
    shown = prepare(model, task, "text", {"text": "the horse is here"}, lambda fields: b"")  # type: ignore[arg-type, return-value]
    with torch.no_grad():
        items = shown.read_output(model(**shown.arguments))["items"]
    assert [item["label"] for item in items] == ["DET", "NOUN", "DET", "NOUN"]
    assert len(shown.tokens["source"]) == shown.arguments["tokens"].shape[1] > 4
    batch = task.batch(task.read([data], task.settings).examples[:2])
    longer = (batch["words"] == 1).sum(1).max()  # a word of several subwords has one label
    assert batch["tokens"].shape[1] > batch["labels"].shape[1] and longer >= 1
    padded = task.pad_for_cuda_graph(batch)
    assert padded["tokens"].shape == (32, 16) and padded["features"].shape[:2] == padded["labels"].shape == (32, 16)
    inputs = {name: x for name, x in padded.items() if name != "labels"}
    with torch.no_grad():
        plain = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
        torch.testing.assert_close(model(**inputs).logits[:2, : plain.shape[1]], plain, atol=1e-5, rtol=1e-4)


def test_language_model_goes_on_from_gpt2(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(
        TEXTS * 4, unit="bpe", size=300, special=Special("<|endoftext|>", "<unk>", None, None, None)
    )
    tokenizer.settings |= {"eos_token": "<|endoftext|>", "model_input_names": ["input_ids"]}
    model = gpt2(layers=1, dim=16, heads=2, vocabulary=tokenizer.size, positions=32).build()
    model.tokenizer = tokenizer
    model.save(tmp_path / "gpt2", format="huggingface")
    data = tmp_path / "text.txt"
    data.write_text("\n".join(TEXTS * 8) + "\n", "utf8")
    config = run_steps("lm", tmp_path / "gpt2", [data], tmp_path / "run", context=16, max_new=5)
    before = rg.load(tmp_path / "gpt2")
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        torch.testing.assert_close(initial_model(config)(tokens=tokens).logits, before(tokens=tokens).logits)
    task, trained, _ = open_run(tmp_path / "run")
    assert str(task.predict(trained, ["the cat"])[0].to_dict()["text"]).startswith("the cat")
    with pytest.raises(rg.BadInput, match="reads 32 tokens"):
        run_steps("lm", tmp_path / "gpt2", [data], tmp_path / "other", context=64)


def test_translation_goes_on_from_t5(tmp_path: Path) -> None:
    torch.manual_seed(0)
    special = Special("<pad>", "<unk>", None, "</s>", None)
    tokenizer = Tokenizer.train(TEXTS * 4, unit="unigram", size=80, special=special)
    tokenizer.settings["model_input_names"] = ["input_ids", "attention_mask"]
    model = t5(layers=1, dim=16, heads=2, head_dim=8, hidden=32, vocabulary=tokenizer.size).build()
    model.tokenizer = tokenizer
    assert tokenizer.pad is not None and tokenizer.end is not None
    model.rules = TokenRules(start=(tokenizer.pad,), end=(tokenizer.end,), pad=tokenizer.pad)
    model.save(tmp_path / "t5", format="huggingface")
    data = tmp_path / "pairs.tsv"
    rows = "".join(f"{text}\t{' '.join(reversed(text.split()))}\n" for text in TEXTS * 3)
    data.write_text("source\ttarget\n" + rows, "utf8")
    config = run_steps("translate", tmp_path / "t5", [data], tmp_path / "run", prefix="reverse: ", max_length=24)
    task = config.prepare(config.task.read(config.train, config.settings).examples)
    batch = task.batch(config.task.read(config.train, config.settings).examples[:1])
    assert (
        batch["targets"][0, 0] == tokenizer.pad
        and batch["labels"][0, int(batch["target_lengths"][0]) - 1] == tokenizer.end
    )
    assert tokenizer.decode(batch["tokens"])[0].replace(" ", "").startswith("reverse:thecat") or "<unk>" in str(
        tokenizer.pieces(batch["tokens"])
    )
    opened, trained, _ = open_run(tmp_path / "run")
    assert opened.rules == task.rules and len(opened.predict(trained, ["the cat"])) == 1


def test_matching_goes_on_from_clip(tmp_path: Path) -> None:
    from PIL import Image

    torch.manual_seed(0)
    tokenizer = Tokenizer.train(TEXTS, unit="words", size=60)
    assert tokenizer.end is not None
    tower = {"layers": 1, "dim": 12, "heads": 3, "hidden": 20}
    made = clip(
        text=tower, image=tower, vocabulary=tokenizer.size, positions=16, end=tokenizer.end, size=8, patch=4, shared=6
    )
    model = made.build()
    model.tokenizer = tokenizer
    model.save(tmp_path / "clip", format="huggingface")
    rng = np.random.default_rng(0)
    for n in range(6):
        Image.fromarray(rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)).save(tmp_path / f"{n}.png")
    data = tmp_path / "captions.csv"
    data.write_text("image,caption\n" + "".join(f"{n}.png,{TEXTS[n % 5]}\n" for n in range(6)), "utf8")
    config = run_steps("match", tmp_path / "clip", [data], tmp_path / "run", batch_size=3)
    before = rg.load(tmp_path / "clip").state_dict()
    assert all(torch.equal(x, before[name]) for name, x in initial_model(config).state_dict().items())
    task, trained, _ = open_run(tmp_path / "run")
    assert len(task.predict(trained, [str(tmp_path / "0.png"), "the cat", "a mouse"])) == 3


def test_images_are_read_as_the_checkpoint_reads_them(tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ViTImageProcessor

    torch.manual_seed(0)
    vit(layers=1, dim=12, heads=3, hidden=20, size=8, patch=4, classes=None).build().save(
        tmp_path / "vit", "huggingface"
    )
    processor = ViTImageProcessor(size={"height": 8, "width": 8}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4])
    processor.save_pretrained(tmp_path / "vit")
    rng = np.random.default_rng(0)
    for label in ("dark", "light"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for n in range(8):
            pixels = rng.integers(0, 100, (13, 11, 3), dtype=np.uint8) + (150 if label == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "data" / label / f"{n}.png")
    run_steps("classify", tmp_path / "vit", [tmp_path / "data"], tmp_path / "run", steps=30, learning_rate=1e-3)
    task, model, _ = open_run(tmp_path / "run")
    image = tmp_path / "data" / "dark" / "0.png"
    batch = task.batch([task.inputs.example_of(str(image))])  # type: ignore[attr-defined]
    expected = processor(Image.open(image), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch["images"], expected, atol=0.03, rtol=0)  # one level of 255, divided by 0.2
    assert task.predict(model, [str(image)])[0].to_dict()["label"] == "dark"


def test_crop_of_an_image_is_its_middle() -> None:
    processor = ImageProcessor.from_config({"size": {"shortest_edge": 4}, "do_center_crop": True}, (2, 2), 1)
    image = torch.arange(4 * 8, dtype=torch.uint8).view(1, 4, 8)
    assert processor.pixels(image).tolist() == [[[11, 12], [19, 20]]]
    assert ImageProcessor.from_dict(json.loads(json.dumps(processor.as_dict()))) == processor


def test_recordings_are_read_as_whisper_reads_them(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    torch.manual_seed(0)
    made = whisper(
        layers=1,
        dim=16,
        heads=2,
        hidden=32,
        vocabulary=20,
        bins=16,
        sound_positions=60,
        positions=8,
        start=1,
        padding=0,
    )
    made.build().save(tmp_path / "whisper", "huggingface")
    time = np.arange(8000) / 16000
    for label, hertz in (("low", 200.0), ("high", 3000.0)):
        (tmp_path / "data" / label).mkdir(parents=True)
        for n in range(6):
            soundfile.write(
                tmp_path / "data" / label / f"{n}.wav", 0.3 * np.sin(2 * np.pi * (hertz + 20 * n) * time), 16000
            )
    run_steps("classify", tmp_path / "whisper", [tmp_path / "data"], tmp_path / "run", steps=30, learning_rate=1e-3)
    task, model, _ = open_run(tmp_path / "run")
    path = tmp_path / "data" / "high" / "0.wav"
    batch = task.batch([task.inputs.example_of(str(path))])  # type: ignore[attr-defined]
    assert batch["sound"].shape[2] == 16 and 49 <= batch["sound"].shape[1] <= 51  # a frame every 10 ms
    assert task.predict(model, [str(path)])[0].to_dict()["label"] == "high"


def test_transcription_goes_on_from_whisper(tmp_path: Path) -> None:
    """Frames and loss are those of transformers; language tokens are checked; a run goes on from a run."""
    soundfile, transformers = pytest.importorskip("soundfile"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    special = Special("<pad>", "<unk>", "<s>", "</s>", None)
    tokenizer = Tokenizer.train(["low tone", "high tone"] * 4, unit="unigram", size=40, special=special)
    sizes = {"layers": 1, "dim": 16, "heads": 2, "hidden": 32, "bins": 16, "sound_positions": 50, "positions": 12}
    assert tokenizer.start is not None and tokenizer.end is not None and tokenizer.pad is not None
    model = whisper(**sizes, vocabulary=tokenizer.size, start=tokenizer.start, padding=tokenizer.pad).build()
    model.tokenizer = tokenizer
    model.rules = TokenRules(start=(tokenizer.start,), end=(tokenizer.end,), pad=tokenizer.pad)
    model.save(tmp_path / "whisper", "huggingface")
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    extractor.save_pretrained(tmp_path / "whisper")
    rows, time = [], np.arange(6000) / 16000
    for n in range(12):
        samples = (0.3 * np.sin(2 * np.pi * (3000 if n % 2 else 200 + 20 * n) * time)).astype(np.float32)
        soundfile.write(tmp_path / f"{n}.wav", samples, 16000, subtype="FLOAT")
        rows.append(f"{n}.wav,{'high' if n % 2 else 'low'} tone")
    data = tmp_path / "spoken.csv"
    data.write_text("path,text\n" + "\n".join(rows) + "\n", "utf8")
    settings = {
        "learning_rate": 1e-2,
        "warmup": 5,
        "batch_size": 6,
        "steps": 100,
        "layer_decay": 1.0,
        "schedule": "constant",
    }
    config = run_steps("transcribe", tmp_path / "whisper", [data], tmp_path / "run", **settings)
    examples = config.task.read(config.train, config.settings).examples
    task = config.prepare(examples)
    batch = task.batch(examples[:1])
    samples, _ = soundfile.read(tmp_path / "0.wav", dtype="float32")
    frames = extractor(samples, sampling_rate=16000, return_tensors="pt")["input_features"]
    torch.testing.assert_close(batch["sound"], frames.transpose(1, 2), atol=1e-3, rtol=1e-3)
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "whisper").eval()
    with torch.no_grad():
        expected = theirs(frames, labels=batch["labels"][:, 1:]).loss
        loss = task.loss(initial_model(config), batch) / task.count(batch)
    torch.testing.assert_close(loss, expected, atol=1e-3, rtol=1e-3)
    opened, trained, _ = open_run(tmp_path / "run")
    results = opened.predict(trained, [str(tmp_path / "0.wav"), str(tmp_path / "1.wav")])
    assert [result.to_dict()["text"] for result in results] == ["low tone", "high tone"]
    run_steps("transcribe", tmp_path / "run", [data], tmp_path / "again", lora_rank=2)
    with pytest.raises(rg.BadInput, match=r"has no <\|de\|>"):
        run_steps("transcribe", tmp_path / "whisper", [data], tmp_path / "other", language="de")


def test_wrong_family_is_named(tmp_path: Path) -> None:
    made = vit(layers=1, dim=12, heads=3, hidden=20, size=8, patch=4, classes=None)
    made.build().save(tmp_path / "vit", "huggingface")
    table, text = tmp_path / "texts.tsv", tmp_path / "texts.txt"
    table.write_text("text\tlabel\n" + "".join(f"{text}\t{n % 2}\n" for n, text in enumerate(TEXTS * 4)), "utf8")
    text.write_text("\n".join(TEXTS * 4), "utf8")
    pairs = {"first": "text", "second": "label"}
    with pytest.raises(rg.BadInput, match="does not read texts"):
        run_steps("classify", tmp_path / "vit", [table], tmp_path / "run")
    with pytest.raises(rg.BadInput, match="is no language model"):
        run_steps("lm", tmp_path / "vit", [text], tmp_path / "run")
    with pytest.raises(rg.BadInput, match="does not read texts"):
        run_steps("similarity", tmp_path / "vit", [table], tmp_path / "run", **pairs)
    with pytest.raises(rg.Unsupported, match="does not start from a checkpoint"):
        RunConfig.from_changes("nodes", {"checkpoint": str(tmp_path / "vit")}).prepare([])
