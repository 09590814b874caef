"""The page Mechanisms: a call built from score, position, mask and method; its mask, its plan, and its Python code.

Parts come as text and are parsed (`regard.nn.parts.parse`); no code of a request is ever run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regard as rg

from ...attention.parts.mask import Mask, PairGrid, Tiling
from ...attention.parts.masks import Everything, add_batch_heads
from ...attention.parts.part import Part, PartSpec
from ...attention.parts.positions import TransformerXL
from ...attention.parts.text import parse_part
from ...errors import BadInput, RegardError
from ...experiments import CONCEPTS
from ...nn.parts.config import build_part
from ...nn.parts.learned import LearnedTransformerXL
from ...nn.parts.parse import POSITIONS, parse_mask, parse_method, parse_score
from ...nn.parts.rotary import ScaledRotary
from ..lab import Lab
from ..server.jobs import Job

MAX_TEXT = 400
"""Characters of a part's text."""
MAX_NUMBER = 1 << 20
"""The largest number in a part's text."""
SIZES = {"heads": (8, 64), "kv_heads": (8, 64), "queries": (64, 131_072), "keys": (64, 131_072), "head_dim": (32, 256)}
"""Default and largest sizes of a call."""
MAX_ELEMENTS = 1 << 26
"""Elements of q, k or v."""
MAX_PAIRS, TILES = 512, 128
"""Tokens up to which every pair of a mask is drawn, and rows and columns of tiles beyond."""
REACH = 32
UNRELATED = -12.0
"""The score of a word that does not belong to the query."""


def plan(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The call of these parts: formulas, mask, plan, and Python code to copy."""
    sizes = read_sizes(request.get("sizes") or {})
    parts = read_parts(request, sizes)
    q, k = expanded_zeros(sizes, "heads", "queries"), expanded_zeros(sizes, "kv_heads", "keys")
    plan = rg.plan(q, k, k, **parts)
    mask = parts["mask"] or Everything()
    return {
        "sizes": sizes,
        "parts": {name: {"line": str(part), "formula": part.formula} for name, part in parts.items() if part},
        "formula": formulas(parts),
        "python": python_code(parts, sizes),
        "layer": layer_text(request, sizes),
        "plan": {name: getattr(plan, name) for name in ("backend", "reasons", "operations", "bytes", "peak", "tiles")},
        "text": str(plan),
        "refused": refusal(parts, sizes),
        **describe_mask(mask, sizes),
        "curve": position_curve(parts, sizes),
    }


def read_sizes(given: Any) -> dict[str, int]:
    """Sizes of a call; `kv_heads` are as many as heads unless given."""
    if not isinstance(given, dict) or set(given) - set(SIZES):
        raise BadInput(f"sizes is {given!r:.80}; it must be an object of {', '.join(SIZES)}.")
    found = {name: given.get(name, usual) for name, (usual, _) in SIZES.items()}
    found["kv_heads"] = given.get("kv_heads", found["heads"])
    for name, (_, most) in SIZES.items():
        if type(found[name]) is not int or not 1 <= found[name] <= most:
            raise BadInput(f"{name} is {found[name]!r:.40}; it must be a whole number from 1 to {most:,}.")
    if found["heads"] * max(found["queries"], found["keys"]) * found["head_dim"] > MAX_ELEMENTS:
        raise BadInput(f"{found} has more than {MAX_ELEMENTS:,} numbers in q or k. Use fewer heads, tokens or dims.")
    return found


def expanded_zeros(sizes: dict[str, int], heads: str, tokens: str) -> Tensor:
    """Zeros of that shape without its memory."""
    return torch.zeros(()).expand(1, sizes[heads], sizes[tokens], sizes["head_dim"])


def read_parts(request: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
    """The parts of a request; learned tensors are random, from a fixed seed."""
    texts = {name: read_text(request.get(name), name) for name in ("score", "position", "mask", "method")}
    heads, dim = sizes["heads"], sizes["head_dim"]
    positions = POSITIONS | {"TransformerXL": make_transformer_xl}
    parsers: dict[str, Callable[[str], Any]] = {
        "score": parse_score,
        "position": lambda text: parse_part(text, positions),
        "method": parse_method,
    }
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        parts: dict[str, Any] = {"mask": parse_mask(texts["mask"] or None)}
        for name, parse in parsers.items():
            parts[name] = draw_part(parse(texts[name]), heads, dim) if texts[name] else None
    return parts


def read_text(text: Any, name: str) -> str:
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise BadInput(
            f"{name} is {text!r:.60}; it must be a part, such as Causal(), of at most {MAX_TEXT} characters."
        )
    if any(float(number) > MAX_NUMBER for number in re.findall(r"\d+", text)):
        raise BadInput(f"{name} is {text!r:.60}; numbers must be at most {MAX_NUMBER:,}.")
    return text.strip()


def make_transformer_xl(reach: int = REACH, **others: Any) -> LearnedTransformerXL:
    """Transformer-XL's position as a call reads it: its sizes are the call's."""
    return LearnedTransformerXL(dim=1, layers=1, reach=reach)


def draw_part(part: Part, heads: int, dim: int) -> Any:
    """The part of a call; the tensors of a learned one are drawn."""
    if isinstance(part, LearnedTransformerXL):
        reach = REACH if part.reach is None else part.reach
        return TransformerXL(torch.randn(heads, reach + 1, dim), torch.randn(heads, dim), torch.randn(heads, dim))
    if isinstance(part, ScaledRotary):
        raise BadInput(f"position is {part!r:.60}; in a call Rotary takes only base and dim.")
    return build_part(part, heads, dim)() if isinstance(part, PartSpec) else part


def formulas(parts: dict[str, Any]) -> dict[str, str]:
    """The formula of each part."""
    score, position, mask, method = (parts[name] for name in ("score", "position", "mask", "method"))
    return {
        "score": (score or rg.Dot()).formula,
        "position": "" if position is None else position.formula,
        "mask": "" if mask is None else mask.formula,
        "method": (method or rg.Exact()).formula,
    }


def python_code(parts: dict[str, Any], sizes: dict[str, int]) -> str:
    """A program with this call, to be copied and run."""
    size = "1, {}, {}, {}"
    lines = [
        "import torch, regard as rg",
        f"q = torch.randn({size.format(sizes['heads'], sizes['queries'], sizes['head_dim'])})",
        f"k = torch.randn({size.format(sizes['kv_heads'], sizes['keys'], sizes['head_dim'])})",
        "v = torch.randn_like(k)",
    ]
    arguments = []
    for name in ("score", "position", "mask", "method"):
        if parts[name] is not None:
            before, text = part_code(parts[name])
            lines += before
            arguments.append(f"{name}={text}")
    return "\n".join([*lines, f"y = rg.attend({', '.join(['q', 'k', 'v', *arguments])})"])


def part_code(part: Part) -> tuple[list[str], str]:
    """The lines that make a part's tensors, and the part itself as Python."""
    if isinstance(part, Mask) and not part.tensors():
        return [], add_module(repr(part))
    before, arguments = [], []
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            before.append(f"{field.name} = torch.randn({', '.join(map(str, value.shape))})")
            arguments.append(f"{field.name}={field.name}" if field.name != "weight" else "weight")
        elif field.init and value != field.default:
            arguments.append(f"{field.name}={value!r}")
    return before, f"rg.{type(part).__name__}({', '.join(arguments)})"


def add_module(text: str) -> str:
    """A part's text with the module before each name."""
    return re.sub(r"\b([A-Za-z]\w*)\(", lambda match: f"rg.{match[0]}" if match[1] in rg.__all__ else match[0], text)


def layer_text(request: dict[str, Any], sizes: dict[str, int]) -> str | None:
    """The layer with these parts; None for a position that all layers of a stack share."""
    if str(request.get("position")).strip().startswith("TransformerXL"):
        return None
    lines = [
        f"{name}={request[name].strip()!r}" for name in ("score", "position", "mask", "method") if request.get(name)
    ]
    dim, heads = sizes["heads"] * sizes["head_dim"], sizes["heads"]
    own = [f"kv_heads={sizes['kv_heads']}"] if sizes["kv_heads"] != heads else []
    return f"rg.nn.MultiHeadAttention({', '.join([f'dim={dim}', f'heads={heads}', *own, *lines])})"


def refusal(parts: dict[str, Any], sizes: dict[str, int]) -> str | None:
    """Why the call cannot be made; None when it can. A method says so only when it is called."""
    if parts["method"] is None or sizes["heads"] * sizes["queries"] * sizes["keys"] > MAX_ELEMENTS:
        return None
    q, k = expanded_zeros(sizes, "heads", "queries"), expanded_zeros(sizes, "kv_heads", "keys")
    try:
        with torch.no_grad():
            rg.attend(q.clone(), k.clone(), k.clone(), **parts)
    except RegardError as error:
        return str(error)
    return None


def describe_mask(mask: Mask, sizes: dict[str, int]) -> dict[str, Any]:
    """The mask pair by pair where there are few, or else by tiles: 0 no pair allowed, 1 some, 2 all."""
    queries, keys = sizes["queries"], sizes["keys"]
    if queries <= MAX_PAIRS and keys <= MAX_PAIRS:
        every = add_batch_heads(mask.dense(queries, keys))[0, 0]
        return {"mask": every, "tiles": None, "allowed": float(every.float().mean())}
    rows, columns = -(-queries // TILES), -(-keys // TILES)
    tiles = add_batch_heads(mask.tiles(Tiling(PairGrid(queries, keys), rows, columns)))[0, 0]
    return {"mask": None, "tiles": tiles.to(torch.uint8), "tile": [rows, columns], "allowed": None}


def position_curve(parts: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any] | None:
    """The position bias of each head for distances from −32 to 32; None where it depends on the query."""
    position = parts["position"]
    if position is None:
        return None
    reach = 2 * REACH + 1
    bias = position.rel_bias(torch.zeros(1, sizes["heads"], reach, 1), torch.zeros(1, sizes["heads"], reach, 1))
    if bias is None:
        return None
    distance = torch.arange(-REACH, REACH + 1)
    values = bias.table[:, (distance + bias.zero).clamp(0, bias.table.shape[1] - 1)]
    return {"distance": distance, "added": values}


def choices(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """Parts to choose from, as text."""
    choices = {
        "score": ["Dot()", "Dot(scale=1.0)", "Cosine(scale=10.0)", "Bilinear()", "Additive(activation='tanh')",
                  "Additive(activation='leaky_relu')"],
        "position": ["", "Alibi()", "Rotary()", "Bias(reach=16)", "T5Bias(buckets=32)", "Shaw(reach=8)",
                     "TransformerXL(reach=32)"],
        "mask": ["", "Causal()", "Window(before=8, after=8)", "Causal() & Window(before=8)",
                 "Dilated(before=4, after=4, step=3)", "Window(before=4, after=4) | Global(tokens=2)",
                 "longformer(window=16, tokens=1)", "bigbird(block=8, window=3, random=2)",
                 "RandomBlocks(block=8, count=2, seed=0)", "~Window(before=2, after=2)"],
        "method": ["", "Nystrom(landmarks=16)", "Performer(features=64)", "Linformer(tokens=64, rank=16)"],
    }  # fmt: skip
    return {"choices": choices, "sizes": {name: list(pair) for name, pair in SIZES.items()}}


def dictionary(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The soft dictionary: a query is compared with every word, and the result is the weighted mean of their values.

    Words are one-hot keys. A concept's query has the logarithm of each member's share on that member's axis and −12 on
    the others, so that weights = softmax(sharpness · q·k) equal the shares at sharpness 1.
    """
    asked, entries, sharpness = request.get("asked", "fruit"), request.get("entries"), request.get("sharpness", 1.0)
    entries = {"apple": 10, "banana": 5, "chair": 2} if entries is None else entries
    if not isinstance(asked, str) or not isinstance(entries, dict) or not 1 <= len(entries) <= 32:
        raise BadInput('The dictionary needs a query and 1 to 32 entries: {"apple": 10, ...}.')
    if not all(isinstance(value, int | float) and abs(value) <= 1e9 for value in [*entries.values(), sharpness]):
        raise BadInput("The values of the dictionary and its sharpness must be numbers.")
    words = list(entries)
    share = log_shares(asked)
    q = torch.tensor([share.get(word.lower(), UNRELATED) for word in words])
    k, v = torch.eye(len(words)), torch.tensor([float(value) for value in entries.values()])
    call: dict[str, Any] = {"score": rg.Dot(scale=float(sharpness))}
    y = rg.attend(q[None, None, None], k[None, None], v[None, None, :, None], **call)
    view = rg.look(q[None, None, None], k[None, None], **call, weights=True)
    weights = view.weights[0, 0, 0]  # type: ignore[index]
    best = int(weights.argmax())
    return {
        "asked": asked,
        "words": words,
        "q": q,
        "k": k,
        "v": v,
        "scores": q * float(sharpness),
        "weights": weights,
        "answer": float(y),
        "hard": {"word": words[best], "value": float(v[best])},
        "known": bool(share.keys() - {asked.lower()}),
        "concepts": [list(names) for names in CONCEPTS],
        "python": f"q = torch.tensor({[round(value, 4) for value in q.tolist()]})\nk = torch.eye({len(words)})\n"
        f"v = torch.tensor({v.tolist()})\ny = rg.attend(q[None, None, None], k[None, None], v[None, None, :, None], "
        f"score=rg.Dot(scale={float(sharpness)}))",
    }  # fmt: skip


def log_shares(query: str) -> dict[str, float]:
    """The logarithm of each word's share of the query: a concept is shared by its words, a word is all its own."""
    shares = {query.lower(): 0.0}
    for names, members in CONCEPTS.items():
        if query.lower() in names:
            parts = torch.tensor([0.6, 0.4] if len(members) == 2 else [1.0] * len(members))
            logs = (parts / parts.sum()).log().tolist()
            shares |= {word: log for pair, log in zip(members, logs, strict=True) for word in pair}
    return shares


CALLS = {"plan": plan, "choices": choices, "dictionary": dictionary}
