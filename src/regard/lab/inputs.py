"""What a person types, draws or records, as a model's arguments and as tokens to be drawn.

Tokens are drawn from character offsets, never from the vocabulary's own spelling: pieces of one character share a
group. A `Prepared` also knows how to read the model's answer.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attention.errors import BadInput, Unsupported
from ..models.heads import VocabularyHead
from .answers import classes, next_token, nodes, tags, written

PARTED = re.compile(r"\w+(?=n['’]t\b)|n['’]t\b|\w+(?:-\w+)*|['’]\w+|[^\w\s]", re.IGNORECASE)
"""English words as treebanks part them."""


class Limits(NamedTuple):
    """The most characters and tokens that are taken."""

    characters: int
    tokens: int


FEW, MANY = Limits(20_000, 2_000), Limits(200_000, 32_768)
"""Of a text whose every pair may be drawn, and of a long one."""


@dataclass(frozen=True)
class Token:
    """A token as it is drawn: its text and which characters of the input it covers.

    Tokens of one `group` are pieces of the same character; `special` ones were added by the model's own template.
    """

    text: str
    start: int = 0
    end: int = 0
    special: bool = False
    group: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Prepared:
    """What the model is called with, its tokens by side, and how its answer is read."""

    arguments: dict[str, Any]
    tokens: dict[str, list[Token]]
    side: str = "source"
    about: dict[str, Any] = field(default_factory=dict)
    answer: Callable[[Any], dict[str, Any]] = lambda output: {"kind": "none", "items": []}


Fetch = Callable[[dict[str, Any]], bytes]
"""The bytes that an input names: an upload, an example, or base64 in the input itself."""


def prepare(model: Any, task: Any, kind: str, given: dict[str, Any], fetch: Fetch, limits: Limits = FEW) -> Prepared:
    """The input for a model of some kind ("text", "pair", "image", "sound", "graph")."""
    if kind == "text" and hasattr(model, "prepare"):  # a model that is not learned reads its own input
        return model.prepare(need_text(given, limits))
    if kind == "image":
        return image_input(model, task, fetch(given), given)
    if kind == "sound":
        return sound_input(model, task, fetch(given))
    if kind == "graph":
        return graph_input(model, task, given, fetch)
    text = need_text(given, limits)
    if kind == "pair":
        return pair_input(model, task, text, given.get("target"))
    name = getattr(task, "name", None)
    if name == "tag":
        return tag_input(task, text)
    return text_input(model, task, text, limits)


def need_text(given: dict[str, Any], limits: Limits = FEW) -> str:
    """The text of an input; `BadInput` where there is none, or too much."""
    text = given.get("text")
    if not isinstance(text, str):
        raise BadInput(f"This model reads a text; the input is {sorted(given)}. Give it as input.text.")
    if not text.strip():
        raise BadInput("The text is empty. Type a sentence, or choose one of the examples.")
    if len(text) > limits.characters:
        raise BadInput(f"The text has {len(text):,} characters; {too_many(limits.characters, limits)}")
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        raise BadInput("The text has half a character in it. Type it anew.")
    return text


def need_few(tokens: int, given: str = "The text", limits: Limits = FEW) -> None:
    """Raise for more tokens than are taken."""
    if tokens > limits.tokens:
        raise BadInput(f"{given} has {tokens:,} tokens; {too_many(limits.tokens, limits)}")


def too_many(most: int, limits: Limits) -> str:
    if limits == FEW:
        return f"this page takes {most:,}. Shorten it, or open it on Long."
    return f"{most:,} are the most: every layer compares every pair. Shorten it, or choose the model recall."


def drawn(text: str, offsets: list[tuple[int, int]], pieces: list[str], special: list[bool]) -> list[Token]:
    """Tokens from character offsets: what a piece covers, and for pieces of one character which of them it is."""
    tokens: list[Token] = []
    first = 0
    for n, (start, end) in enumerate(offsets):
        same = n > 0 and start < end and (start, end) == offsets[n - 1] and not special[n]
        first = first if same else n
        shown = text[start:end] if start < end and not special[n] else pieces[n]
        tokens.append(Token(shown, start, end, special[n], first if same else None))
        if same:
            tokens[first] = Token(tokens[first].text, start, end, False, first)
    return tokens


def encoded(tokenizer: Any, text: str) -> tuple[list[int], list[Token]]:
    """A text's tokens as numbers and as they are drawn."""
    row = tokenizer.backend.encode(text)
    ends = {tokenizer.number(role) for role in ("pad_token", "cls_token", "bos_token", "sep_token", "eos_token")}
    special = [number in ends for number in row.ids]
    return row.ids, drawn(text, row.offsets, row.tokens, special)


def spelt(tokenizer: Any, numbers: list[int]) -> list[Token]:
    """Tokens that a model wrote, with the places of their characters in the text that they spell."""
    ends = {tokenizer.number(role) for role in ("pad_token", "cls_token", "bos_token", "sep_token", "eos_token")}
    pieces = tokenizer.pieces(numbers)
    tokens, text = [], ""
    for n, number in enumerate(numbers):
        if number in ends:
            tokens.append(Token(pieces[n] or "", len(text), len(text), True))
            continue
        whole = tokenizer.decode([one for one in numbers[: n + 1] if one not in ends])
        shown = whole[len(text) :] if whole.startswith(text) else whole
        tokens.append(Token(shown or pieces[n] or "", len(text), max(len(text), len(whole))))
        text = whole if "\ufffd" not in whole else text
    return tokens


def text_input(model: Any, task: Any, text: str, limits: Limits) -> Prepared:
    """A text for an encoder or a decoder."""
    tokenizer = tokenizer_of(model, task)
    running = getattr(task, "name", None) == "lm"
    numbers, tokens = by_lines(tokenizer, text) if running else encoded(tokenizer, text)
    if hasattr(getattr(task, "settings", None), "longest"):
        numbers, tokens = cut(numbers, tokens, task.settings.longest)
    need_few(len(numbers), limits=limits)
    arguments = {"tokens": torch.tensor([numbers])}
    if hasattr(task, "inputs"):  # as the task itself calls its model
        arguments["lengths"] = torch.tensor([len(numbers)])
    about = {"context": task.settings.context} if running else {}
    answer = text_answer(model, tokenizer, numbers, getattr(task, "labels", None))
    return Prepared(arguments, {"source": tokens}, "source", about, answer)


def tokenizer_of(model: Any, task: Any) -> Any:
    found = getattr(task, "tokenizer", None) or model.tokenizer
    if found is None:
        raise Unsupported("This model's folder has no tokenizer, so texts cannot become tokens. Put its files there.")
    return found


def by_lines(tokenizer: Any, text: str) -> tuple[list[int], list[Token]]:
    """A running text, whose lines a language model reads one by one."""
    numbers: list[int] = []
    tokens: list[Token] = []
    begin = 0
    lines = text.splitlines(keepends=True)
    for line, row in zip(lines, tokenizer.backend.encode_batch(lines), strict=True):
        base = len(tokens)
        for token in drawn(line, row.offsets, row.tokens, [False] * len(row.ids)):
            group = None if token.group is None else token.group + base
            tokens.append(Token(token.text, token.start + begin, token.end + begin, token.special, group))
        numbers += row.ids
        begin += len(line)
    return numbers, tokens


def cut(numbers: list[int], tokens: list[Token], longest: int) -> tuple[list[int], list[Token]]:
    """The beginning of a text that is too long for a model, with its end token."""
    if len(numbers) <= longest:
        return numbers, tokens
    ended = tokens[-1].special
    keep = longest - 1 if ended else longest
    return numbers[:keep] + numbers[-1:] * ended, tokens[:keep] + tokens[-1:] * ended


def text_answer(model: Any, tokenizer: Any, numbers: list[int], labels: list[str] | None) -> Callable[[Any], dict]:
    """How the answer of a model that reads text is shown: classes, the next token, or what is hidden."""

    def answer(output: Any) -> dict[str, Any]:
        if output.logits is None:
            return {"kind": "vector", "items": []}
        if output.logits.dim() == 2:
            return classes(output.logits[0], labels)
        if not isinstance(model.head, VocabularyHead):
            return tags(output.logits[0], labels)
        if getattr(model, "causal", False):
            return next_token(output.logits[0], tokenizer, [len(numbers) - 1], "next")
        hidden = [n for n, number in enumerate(numbers) if number == tokenizer.mask]
        return next_token(output.logits[0], tokenizer, hidden, "masked")

    return answer


def tag_input(task: Any, text: str) -> Prepared:
    """A sentence for a tagger: words as treebanks part them, or as blanks do where they part everything."""
    from ..data.tagged import Tagged

    found = list(PARTED.finditer(text))
    if not found:
        raise BadInput("There is no word in the text. Type a sentence.")
    words = [one[0] for one in found]
    need_few(len(words), "The sentence")
    batch = task.batch([Tagged(tuple(words), ("",) * len(words))])
    tokens = [Token(one[0], one.start(), one.end()) for one in found]
    return Prepared(
        {"tokens": batch["tokens"]},
        {"source": tokens},
        "source",
        {"labels": task.tags},
        lambda output: tags(output.logits[0], task.tags),
    )


def pair_source(model: Any, task: Any, text: str) -> tuple[Any, list[int], list[Token]]:
    """What an encoder–decoder reads: its tokenizer, the tokens as numbers and as they are drawn."""
    tokenizer = tokenizer_of(model, task)
    numbers, tokens = encoded(tokenizer, text)
    if task is not None:
        numbers, tokens = cut(numbers, tokens, task.settings.longest)
    need_few(len(numbers))
    return tokenizer, numbers, tokens


def pair_input(model: Any, task: Any, text: str, target: Any) -> Prepared:
    """A text and its translation: the one that is given, or the one that the model writes."""
    tokenizer, numbers, tokens = pair_source(model, task, text)
    source = torch.tensor([numbers])
    whole = forced(model, task, tokenizer.target, target) if target else translated(model, task, numbers)
    shown = spelt(tokenizer.target, whole)
    arguments = {"tokens": source, "targets": torch.tensor([whole[:-1]])}
    return Prepared(
        arguments,
        {"source": tokens, "target": shown[:-1]},
        "source",
        {"writes": [token.as_dict() for token in shown[1:]], "written": not target},
        lambda output: written(output.logits[0], tokenizer.target, whole[1:]),
    )


@torch.no_grad()
def translated(model: Any, task: Any, numbers: list[int]) -> list[int]:
    """The tokens that the model writes, start and end included."""
    if task is not None:
        return trimmed(task.write(model, [numbers])[0].tolist(), task.rules.end)
    made = model.generate(tokens=torch.tensor([numbers]), max_new=min(256, 2 * len(numbers) + 20))[0].tolist()
    return trimmed(made, model.rules.end if model.rules is not None else ())


def trimmed(numbers: list[int], ends: tuple[int, ...]) -> list[int]:
    """Tokens up to the first end, that included; at least two, so that something is written."""
    for n, number in enumerate(numbers[1:], 1):
        if number in ends:
            return numbers[: n + 1]
    return numbers


def forced(model: Any, task: Any, tokenizer: Any, target: Any) -> list[int]:
    """The tokens of a translation that is given, after the decoder's start: a text, or the numbers of its tokens."""
    start = list(task.rules.start) if task is not None else [model.config.start]
    if isinstance(target, list):
        if len(target) > FEW.tokens or not all(type(one) is int and 0 <= one < tokenizer.size for one in target):
            raise BadInput(f"target is {target!r:.60}; it must be a text, or numbers of tokens below {tokenizer.size}.")
        return [*start, *target]
    numbers, tokens = encoded(tokenizer, str(target))
    plain = [number for number, token in zip(numbers, tokens, strict=True) if not token.special]
    ends = task.rules.end if task is not None else model.rules.end if model.rules is not None else ()
    return [*start, *plain, *ends[:1]]


def image_input(model: Any, task: Any, data: bytes, given: dict[str, Any]) -> Prepared:
    """A picture for a model that reads patches."""
    from ..data.images import ImageBytes, LabelledImage, load_image

    held = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
    picture = ImageBytes(held, "The picture")
    embed: Any = getattr(getattr(model, "image", None) or model, "embed", None)
    if not hasattr(embed, "patches"):
        raise Unsupported(f"{type(model).__name__} cuts no picture into patches, so there is no grid to draw on.")
    if hasattr(task, "inputs"):
        images = task.inputs.batch([LabelledImage(picture, "")], None)["images"]
    else:
        images = plain_image(load_image(picture, 3), model)
    grid = embed.patches.grid(*images.shape[2:])
    tokens = [Token("[CLS]", special=True)] if embed_has_class(embed) else []
    tokens += [Token(f"{n // grid[1]},{n % grid[1]}", n, n + 1) for n in range(grid[0] * grid[1])]
    about = {"grid": list(grid), "size": list(images.shape[2:]), "class_token": embed_has_class(embed)}
    labels = getattr(task, "labels", None)
    return Prepared(
        {"images": images},
        {"image": tokens},
        "image",
        about | {"pixels": shown_pixels(images[0])},
        lambda output: {"kind": "none", "items": []} if output.logits is None else classes(output.logits[0], labels),
    )


def embed_has_class(embed: Any) -> bool:
    return hasattr(embed, "first")


def plain_image(pixels: Tensor, model: Any) -> Tensor:
    """A picture in the size and the range of brightness that a checkpoint of others reads."""
    from ..tasks.pictures import resized

    config = getattr(model.config, "embed", None) or model.config.image.embed
    size = (config.size, config.size) if isinstance(config.size, int) else tuple(config.size)
    said = getattr(model, "preprocessor", {})
    mean, deviation = (torch.tensor(said.get(name, [0.5] * 3))[:, None, None] for name in ("image_mean", "image_std"))
    return ((resized(pixels, size).float() / 255 - mean) / deviation)[None]


def shown_pixels(image: Tensor) -> Tensor:
    """What the model sees, brightened to 0 … 255: uint8 `[channels, height, width]`."""
    low, high = image.min(), image.max()
    return ((image - low) / (high - low).clamp(min=1e-6) * 255).round().to(torch.uint8)


def sound_input(model: Any, task: Any, data: bytes) -> Prepared:
    """A recording for a model that reads frames."""
    if task is None:
        raise Unsupported("Recordings are read by models that were trained here; this folder says nothing of frames.")
    sound = recording(data)
    samples, rate = sound.load()
    if task.name == "transcribe":
        from ..data.sound import Spoken

        batch = task.inputs([Spoken("", sound=sound)])
        stack = task.settings.stack
    else:
        from ..data.sound import LabelledSound

        batch = task.inputs.batch([LabelledSound(sound, "")], None)
        stack = task.settings.stack
    frames = int(batch["lengths"][0])
    count = -(-frames // stack)
    hop = len(samples) / rate / max(1, frames)
    tokens = [Token(f"{n * stack * hop:.2f} s", n * stack, min((n + 1) * stack, frames)) for n in range(count)]
    need_few(count, "The recording")
    about = {
        "seconds": len(samples) / rate,
        "seconds_per_token": stack * hop,
        "rate": rate,
        "wave": envelope(samples),
        "frames": batch["sound"][0],
    }
    if task.name == "transcribe":
        return transcript_input(model, task, batch, tokens, about)
    answer = lambda output: classes(output.logits[0], task.labels)  # noqa: E731
    return Prepared(dict(batch), {"sound": tokens}, "sound", about, answer)


def transcript_input(model: Any, task: Any, batch: dict[str, Tensor], tokens: list[Token], about: dict) -> Prepared:
    """What a transcriber hears and, where it has a decoder, writes."""
    if task.settings.decoder:
        raise Unsupported("The lab shows transcribers without a decoder, whose labels stand at the frames themselves.")
    with torch.no_grad():
        text = task.laid_out(model, batch)[0]
    answer = lambda output: {"kind": "text", "text": text, "items": []}  # noqa: E731
    return Prepared(dict(batch), {"sound": tokens}, "sound", about, answer)


def recording(data: bytes) -> Any:
    """The samples of a file of sound; `BadInput` for what is broken, cut or empty."""
    from ..data.sound import Samples, SoundFile, check_sound

    with TemporaryDirectory() as folder:
        path = Path(folder) / "The recording.wav"
        path.write_bytes(data)
        try:
            check_sound(path)
            samples, rate = SoundFile(path).load()
        except BadInput as error:
            raise BadInput(str(error).replace(str(path), "The recording")) from None
    return Samples(samples, rate)


def envelope(samples: Tensor, points: int = 600) -> Tensor:
    """The loudest sample of each stretch, for drawing a recording, `[points]`."""
    size = max(1, -(-len(samples) // points))
    padded = torch.nn.functional.pad(samples.abs(), (0, -len(samples) % size))
    return padded.view(-1, size).amax(1)


def graph_input(model: Any, task: Any, given: dict[str, Any], fetch: Fetch) -> Prepared:
    """A graph: one that is given by its nodes and edges, or a file."""
    if "edges" in given:
        features, edges, names = small_graph(model, given)
    else:
        features, edges, names = graph_file(task, fetch(given))
    tokens = [Token(name, n, n + 1) for n, name in enumerate(names)]
    labels = getattr(task, "labels", None)
    about = {"edges": edges.to(torch.int32), "labels": labels}
    answer = lambda output: nodes(output.logits, labels)  # noqa: E731
    return Prepared({"nodes": features, "edges": edges}, {"nodes": tokens}, "nodes", about, answer)


def small_graph(model: Any, given: dict[str, Any]) -> tuple[Tensor, Tensor, list[str]]:
    """A graph typed by hand: `edges` [[source, target], …], `nodes` their features, or how many there are."""
    wanted = int(model.config.features)
    try:
        edges = torch.tensor(given["edges"], dtype=torch.int64).reshape(-1, 2).t().contiguous()
        listed = given.get("nodes", int(edges.max()) + 1 if edges.numel() else 1)
        count = min(listed, FEW.tokens + 1) if isinstance(listed, int) else 0
        features = torch.eye(count, wanted) if count else torch.tensor(listed, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadInput(f"The graph is no list of pairs of whole numbers with features ({error}).") from None
    if features.dim() != 2 or not 0 < len(features) <= FEW.tokens or features.shape[1] != wanted:
        raise BadInput(
            f"The nodes are {list(features.shape)}; wanted 1 to {FEW.tokens} of them with {wanted} features each."
        )
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= len(features)):
        raise BadInput(f"An edge names node {int(edges.max())}; there are {len(features)}, 0 … {len(features) - 1}.")
    return features, edges, [str(n) for n in range(len(features))]


def graph_file(task: Any, data: bytes) -> tuple[Tensor, Tensor, list[str]]:
    """The graph of an NPZ file, as the task reads it."""
    if task is None or not hasattr(task, "make_nodes"):
        raise Unsupported("Graph files are read by models that were trained here. Give nodes and edges instead.")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.npz"
        path.write_bytes(data)
        try:
            graph = task.read([path], task.settings).strict().examples[0].graph
        except BadInput as error:
            raise BadInput(str(error).replace(str(path), "The graph")) from None
    return task.make_nodes(graph), graph.edges, [str(n) for n in range(len(graph.nodes))]


def from_base64(text: Any) -> bytes:
    """Bytes that an input carries itself."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise BadInput("The input's base64 cannot be read. Upload the file instead.") from None
