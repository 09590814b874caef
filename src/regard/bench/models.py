"""Whole models on a CPU beside transformers: decoding, evaluation with a memory, encoding of sentences."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard import machine
from regard.bench.cpu import check_agreement
from regard.bench.measure import median_times
from regard.bench.result import BenchmarkResult, BenchmarkRow
from regard.bench.workloads import Calls
from regard.models.checkpoint.checkpoint import read_hugging_face
from regard.models.checkpoint.files import JsonObject
from regard.models.families.transformer_xl import transformer_xl
from regard.models.model import Model
from regard.nn.cache import Cache

PUBLISHED_SPEEDUPS = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Speedup of Transformer-XL's evaluation by attention length (Dai et al. 2019)."""

GPT2 = {"layers": 12, "dim": 768, "heads": 12, "vocabulary": 50257, "new": 256}
SMALL_GPT2 = {"layers": 2, "dim": 48, "heads": 3, "vocabulary": 101, "new": 12}
XL = {"layers": 4, "dim": 128, "heads": 4, "segment": 128}
SMALL_XL = {"layers": 2, "dim": 32, "heads": 2, "segment": 8}
MINILM = {"layers": 6, "dim": 384, "heads": 12, "vocabulary": 30522, "sentences": 256, "rows": 32, "longest": 120}
SMALL_MINILM = {"layers": 2, "dim": 24, "heads": 2, "vocabulary": 101, "sentences": 16, "rows": 8, "longest": 20}


@dataclass(frozen=True)
class StateDictWeights:
    """The weights of a model in memory, with the interface of a checkpoint folder's weights."""

    tensors: dict[str, Tensor]

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]


@dataclass(frozen=True)
class InMemoryFolder:
    """A transformers model with the interface of a checkpoint folder."""

    model: Any  # of transformers, whose attributes depend on the architecture
    path: Path = Path("transformers")

    @property
    def config(self) -> JsonObject:
        return self.model.config.to_dict() | {"architectures": [type(self.model).__name__]}

    def weights(self) -> StateDictWeights:
        return StateDictWeights(self.model.state_dict())


def convert_from_transformers(theirs: nn.Module) -> Model:
    """Our model with the weights of a transformers model."""
    return read_hugging_face(InMemoryFolder(theirs)).eval()  # type: ignore[arg-type]


def decoding_calls(layers: int, dim: int, heads: int, vocabulary: int, new: int) -> Calls:
    """Greedy decoding of `new` tokens after a prompt of eight, by a GPT-2 of these sizes with random weights."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=dim, n_head=heads, vocab_size=vocabulary, n_positions=1024, bos_token_id=0,
        eos_token_id=None, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = convert_from_transformers(theirs)
    prompt = torch.randint(vocabulary, (1, 8))
    exactly = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    return {
        "regard": lambda: (ours.generate(tokens=prompt, max_new=new, end=()),),
        "transformers": lambda: (theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **exactly),),
    }


def memory_bandwidth(size: int) -> float:
    """Bytes per second that this machine reads from memory with torch's threads."""
    numbers = torch.zeros(size // 4)
    return size / median_times({"read": lambda: numbers.sum()}, budget=1.0)["read"]


def decoding_rows(sizes: dict[str, int], budget: float, quick: bool) -> Iterator[BenchmarkRow]:
    calls = decoding_calls(**sizes)
    check_agreement("decoding", calls, 0.0)
    bandwidth = memory_bandwidth(4_000_000 if quick else 1_000_000_000)
    seconds = median_times(calls, budget)
    layer = 12 * sizes["dim"] ** 2 + 13 * sizes["dim"]
    weights = 4 * (sizes["layers"] * layer + (sizes["vocabulary"] + 2) * sizes["dim"])
    shape = f"{sizes['layers']} layers, dim {sizes['dim']}, {sizes['new']} tokens"
    row = partial(BenchmarkRow, "greedy decoding, GPT-2", shape, "time", seconds["regard"])
    yield row("transformers", seconds["transformers"], 1.2)
    yield row(f"limit: all weights read at {bandwidth / 1e9:.3g} GB/s", sizes["new"] * weights / bandwidth)


def evaluation_calls(layers: int, dim: int, heads: int, segment: int, length: int) -> Calls:
    """Log-probabilities of the last token of a text at an attention length.

    `regard` computes the last segment after a memory; `window` recomputes the whole window. The text fills the window,
    so both attend to the same tokens.
    """
    torch.manual_seed(0)
    config = transformer_xl(
        layers=layers, dim=dim, heads=heads, hidden=4 * dim, vocabulary=204, memory=length - segment, dropout=0.0
    )
    model = config.build().eval()
    text = torch.randint(204, (1, length))
    with torch.inference_mode():
        cache = None
        for piece in text[:, : length - segment].split(segment, 1):
            cache = model(tokens=piece, cache=cache).cache

    @torch.inference_mode()
    def last_log_probs(tokens: Tensor, cache: Cache | None) -> tuple[Tensor]:
        return (model(tokens=tokens, cache=cache).logits.log_softmax(-1)[:, -1],)

    return {
        "regard": lambda: last_log_probs(text[:, length - segment :], cache),
        "window": lambda: last_log_probs(text, None),
    }


def evaluation_rows(sizes: dict[str, int], length: int, budget: float) -> Iterator[BenchmarkRow]:
    calls = evaluation_calls(**sizes, length=length)
    check_agreement("evaluation with a memory", calls, 1e-4)
    seconds = median_times(calls, budget)
    paper = f" (paper: {PUBLISHED_SPEEDUPS[length]:,}×)" if length in PUBLISHED_SPEEDUPS else ""
    shape = f"attention length {length}, {sizes['layers']} layers, dim {sizes['dim']}"
    per_token = seconds["regard"] / sizes["segment"]
    yield BenchmarkRow(
        "Transformer-XL, evaluating a token", shape, "time", per_token, f"recomputed window{paper}", seconds["window"]
    )


def random_sentences(count: int, longest: int, vocabulary: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Padded batches of tokens `[rows, tokens]` and their lengths: 5 to `longest` words, a start and an end token."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, longest + 1, (count,), generator=generator) + 2
    batches = []
    for row_lengths in lengths.split(rows):
        tokens = torch.randint(1, vocabulary, (len(row_lengths), int(row_lengths.max())), generator=generator)
        padding = torch.arange(tokens.shape[1]) >= row_lengths[:, None]
        batches.append((tokens.masked_fill(padding, 0), row_lengths))
    return batches


def encoding_calls(layers: int, dim: int, heads: int, vocabulary: int, batches: list[tuple[Tensor, Tensor]]) -> Calls:
    """The mean of the last layer for each sentence, by a BERT of these sizes with random weights."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=dim, num_attention_heads=heads, intermediate_size=4 * dim,
        vocab_size=vocabulary, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = transformers.BertModel(config).eval()
    ours = convert_from_transformers(theirs)

    @torch.inference_mode()
    def encode(last_layer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor]:
        vectors = []
        for tokens, lengths in batches:
            real = torch.arange(tokens.shape[1]) < lengths[:, None]
            vectors.append((last_layer(tokens, lengths, real) * real[..., None]).sum(1) / lengths[:, None])
        return (torch.cat(vectors),)

    return {
        "regard": lambda: encode(lambda tokens, lengths, _: ours(tokens=tokens, lengths=lengths).hidden),
        "transformers": lambda: encode(lambda tokens, _, real: theirs(tokens, real.long()).last_hidden_state),
    }


def encoding_rows(sizes: dict[str, int], budget: float) -> Iterator[BenchmarkRow]:
    count, rows, longest = sizes["sentences"], sizes["rows"], sizes["longest"]
    model = {name: sizes[name] for name in ("layers", "dim", "heads", "vocabulary")}
    calls = encoding_calls(**model, batches=random_sentences(count, longest, sizes["vocabulary"], rows))
    check_agreement("encoding sentences", calls, 1e-4)
    seconds = median_times(calls, budget)
    shape = f"{count} sentences of 5–{longest} words, {sizes['layers']} layers, dim {sizes['dim']}"
    yield BenchmarkRow(
        "encoding, MiniLM", shape, "time", seconds["regard"], "transformers", seconds["transformers"], 1.3
    )


def run(quick: bool = False, budget: float = 30.0, report: Callable[[str], None] = lambda _: None) -> BenchmarkResult:
    """Run every comparison whose packages are installed; `report` receives the name of each when it starts.

    Raises `WrongNumbers` if a result differs from the peer's.
    """
    budget = 0.0 if quick else budget
    rows: list[BenchmarkRow] = []
    notes: list[str] = []
    for workload, package, make in model_workloads(quick, budget):
        if package and find_spec(package) is None:
            notes.append(f"Left out: {workload}, because {package} is not installed.")
            continue
        report(workload)
        rows += make()
    measured = tuple(replace(row, goal=None) if quick else row for row in rows)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResult(
        machine.processor(), now, torch.get_num_threads(), quick, machine.versions(), measured, tuple(notes)
    )


def model_workloads(
    quick: bool, budget: float
) -> Iterator[tuple[str, str | None, Callable[[], Iterator[BenchmarkRow]]]]:
    """The name, the required package and the rows of each comparison."""
    gpt2, xl, minilm = (SMALL_GPT2, SMALL_XL, SMALL_MINILM) if quick else (GPT2, XL, MINILM)
    yield "greedy decoding", "transformers", partial(decoding_rows, gpt2, budget, quick)
    for length in (64,) if quick else PUBLISHED_SPEEDUPS:
        yield f"evaluation at {length}", None, partial(evaluation_rows, xl, length, budget / len(PUBLISHED_SPEEDUPS))
    yield "encoding sentences", "transformers", partial(encoding_rows, minilm, budget)
