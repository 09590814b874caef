"""Whole models on a CPU: decoding, evaluation with a memory, and encoding of sentences, beside what others do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import machine
from regard.bench.cpu import agree
from regard.bench.measure import times
from regard.bench.result import Result, Row
from regard.bench.works import Calls
from regard.models.checkpoint.checkpoint import read_theirs
from regard.models.families.transformer_xl import transformer_xl

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Times that Transformer-XL's evaluation was faster at an attention length (Dai et al. 2019)."""

GPT2 = {"layers": 12, "dim": 768, "heads": 12, "vocabulary": 50257, "new": 256}
SMALL_GPT2 = {"layers": 2, "dim": 48, "heads": 3, "vocabulary": 101, "new": 12}
XL = {"layers": 4, "dim": 128, "heads": 4, "segment": 128}
SMALL_XL = {"layers": 2, "dim": 32, "heads": 2, "segment": 8}
MINILM = {"layers": 6, "dim": 384, "heads": 12, "vocabulary": 30522, "sentences": 256, "rows": 32, "longest": 120}
SMALL_MINILM = {"layers": 2, "dim": 24, "heads": 2, "vocabulary": 101, "sentences": 16, "rows": 8, "longest": 20}


@dataclass(frozen=True)
class Held:
    """The weights of a model in memory, read as those of a folder are."""

    tensors: dict[str, Tensor]

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]


@dataclass(frozen=True)
class Theirs:
    """A model of transformers, where a folder is expected."""

    model: Any
    path: Path = Path("transformers")

    @property
    def config(self) -> dict[str, Any]:
        return self.model.config.to_dict() | {"architectures": [type(self.model).__name__]}

    def weights(self) -> Held:
        return Held(self.model.state_dict())


def ours_of(theirs: Any) -> Any:
    """Our model with the weights of one of transformers'."""
    return read_theirs(Theirs(theirs)).eval()  # type: ignore[arg-type]


def decoding(layers: int, dim: int, heads: int, vocabulary: int, new: int) -> Calls:
    """Greedy decoding of `new` tokens after a prompt of eight, by a GPT-2 of these sizes with random weights."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=dim, n_head=heads, vocab_size=vocabulary, n_positions=1024, bos_token_id=0,
        eos_token_id=None, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = ours_of(theirs)
    prompt = torch.randint(vocabulary, (1, 8))
    exactly = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    return {
        "regard": lambda: (ours.generate(tokens=prompt, max_new=new, end=()),),
        "transformers": lambda: (theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **exactly),),
    }


def read_rate(size: int) -> float:
    """Bytes a second at which this machine reads memory, with the threads that torch has."""
    numbers = torch.zeros(size // 4)
    return size / times({"read": lambda: numbers.sum()}, budget=1.0)["read"]


def decoding_rows(sizes: dict[str, int], budget: float, quick: bool) -> Iterator[Row]:
    calls = decoding(**sizes)
    agree("decoding", calls, 0.0)
    rate = read_rate(4_000_000 if quick else 1_000_000_000)
    took = times(calls, budget)
    layer = 12 * sizes["dim"] ** 2 + 13 * sizes["dim"]
    weights = 4 * (sizes["layers"] * layer + (sizes["vocabulary"] + 2) * sizes["dim"])
    shape = f"{sizes['layers']} layers, dim {sizes['dim']}, {sizes['new']} tokens"
    row = partial(Row, "greedy decoding, GPT-2", shape, "time", took["regard"])
    yield row("transformers", took["transformers"], 1.2)
    yield row(f"limit: all weights read at {rate / 1e9:.3g} GB/s", sizes["new"] * weights / rate)


def evaluation(layers: int, dim: int, heads: int, segment: int, length: int) -> Calls:
    """The log-probabilities of a text at an attention length: of its last segment after a memory, or of one token after
    the window before it. The text fills the window, so both see the same; each gives that of the last token."""
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
    def last(tokens: Tensor, cache: Any) -> tuple[Tensor]:
        return (model(tokens=tokens, cache=cache).logits.log_softmax(-1)[:, -1],)

    return {
        "regard": lambda: last(text[:, length - segment :], cache),
        "window": lambda: last(text, None),
    }


def evaluation_rows(sizes: dict[str, int], length: int, budget: float) -> Iterator[Row]:
    calls = evaluation(**sizes, length=length)
    agree("evaluation with a memory", calls, 1e-4)
    took = times(calls, budget)
    paper = f" (paper: {PUBLISHED[length]:,}×)" if length in PUBLISHED else ""
    shape = f"attention length {length}, {sizes['layers']} layers, dim {sizes['dim']}"
    one = took["regard"] / sizes["segment"]
    yield Row("Transformer-XL, evaluating a token", shape, "time", one, f"recomputed window{paper}", took["window"])


def sentences(count: int, longest: int, vocabulary: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Padded batches of tokens `[rows, tokens]` and their lengths: 5 to `longest` words, a begin and an end."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, longest + 1, (count,), generator=generator) + 2
    batches = []
    for some in lengths.split(rows):
        tokens = torch.randint(1, vocabulary, (len(some), int(some.max())), generator=generator)
        batches.append((tokens.masked_fill(torch.arange(tokens.shape[1]) >= some[:, None], 0), some))
    return batches


def encoding(layers: int, dim: int, heads: int, vocabulary: int, batches: list[tuple[Tensor, Tensor]]) -> Calls:
    """The mean of each sentence's last layer, from a BERT of these sizes with random weights."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=dim, num_attention_heads=heads, intermediate_size=4 * dim,
        vocab_size=vocabulary, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = transformers.BertModel(config).eval()
    ours = ours_of(theirs)

    @torch.inference_mode()
    def encode(last: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor]:
        found = []
        for tokens, lengths in batches:
            real = torch.arange(tokens.shape[1]) < lengths[:, None]
            found.append((last(tokens, lengths, real) * real[..., None]).sum(1) / lengths[:, None])
        return (torch.cat(found),)

    return {
        "regard": lambda: encode(lambda tokens, lengths, _: ours(tokens=tokens, lengths=lengths).hidden),
        "transformers": lambda: encode(lambda tokens, _, real: theirs(tokens, real.long()).last_hidden_state),
    }


def encoding_rows(sizes: dict[str, int], budget: float) -> Iterator[Row]:
    count, rows, longest = sizes["sentences"], sizes["rows"], sizes["longest"]
    model = {name: sizes[name] for name in ("layers", "dim", "heads", "vocabulary")}
    calls = encoding(**model, batches=sentences(count, longest, sizes["vocabulary"], rows))
    agree("encoding sentences", calls, 1e-4)
    took = times(calls, budget)
    shape = f"{count} sentences of 5–{longest} words, {sizes['layers']} layers, dim {sizes['dim']}"
    yield Row("encoding, MiniLM", shape, "time", took["regard"], "transformers", took["transformers"], 1.3)


def run(quick: bool = False, budget: float = 30.0, tell: Callable[[str], None] = lambda _: None) -> Result:
    """Every comparison that this machine has the packages for; `tell` hears of each as it begins.

    Raises `WrongNumbers` as soon as one of them computes something else than its peer.
    """
    budget = 0.0 if quick else budget
    rows: list[Row] = []
    notes: list[str] = []
    for work, needs, make in works(quick, budget):
        if needs and find_spec(needs) is None:
            notes.append(f"Left out: {work}, because {needs} is not installed.")
            continue
        tell(work)
        rows += make()
    found = tuple(replace(row, goal=None) if quick else row for row in rows)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Result(machine.processor(), now, torch.get_num_threads(), quick, machine.versions(), found, tuple(notes))


def works(quick: bool, budget: float) -> Iterator[tuple[str, str | None, Callable[[], Iterator[Row]]]]:
    """What is compared, what it needs, and its rows."""
    gpt2, xl, minilm = (SMALL_GPT2, SMALL_XL, SMALL_MINILM) if quick else (GPT2, XL, MINILM)
    yield "greedy decoding", "transformers", partial(decoding_rows, gpt2, budget, quick)
    for length in (64,) if quick else PUBLISHED:
        yield f"evaluation at {length}", None, partial(evaluation_rows, xl, length, budget / len(PUBLISHED))
    yield "encoding sentences", "transformers", partial(encoding_rows, minilm, budget)
