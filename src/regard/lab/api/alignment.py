"""The page Alignment: beam search step by step, and the cross-attention of a decoder to words or to seconds."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.model import EncoderDecoderModel
from ...models.tokenizers.tokenizer import Tokenizer
from ...tasks.translate import join_tokens
from ..attribution.methods import select_head
from ..inputs.audio import audio_source
from ..inputs.model_input import TokenFields, is_sound
from ..inputs.notices import Notice
from ..inputs.seq2seq import Source, generation_rules, max_new_tokens, text_source
from ..inputs.text import check_text, decode_tokens, find_tokenizer
from ..inspect.captured_attention import CapturedAttention
from ..inspect.decoding import Candidate, Hypothesis, trace_search
from ..lab import Lab
from ..library import LoadedModel
from ..protocol import Json, Request
from ..server.jobs import Job
from .heads import AttentionWithBackend, OutputDifferences, describe_with_backend, output_differences
from .request import check_index


class WrittenCandidate(Candidate):
    """A candidate with its text, and the text of the beam that it continues."""

    piece: str
    prefix: str


class WrittenText(Hypothesis):
    text: str


class Search(TypedDict):
    """The beam search step by step. See `decoding.SearchTrace`."""

    tokens: list[TokenFields]
    steps: list[list[WrittenCandidate]]
    finished: list[WrittenText]
    start: list[int]


class TargetToken(TokenFields):
    probability: float | None


class CrossWeights(TypedDict):
    """See `read`."""

    tokens: list[TokenFields]
    side: str
    notices: list[Notice]
    seconds_per_token: float | None
    text: str | None
    target_tokens: list[TargetToken]
    generated: bool
    attentions: list[AttentionWithBackend]
    attention: int
    head: int | None
    weights: Tensor
    outside: Tensor
    norms: Tensor | None
    masked: Tensor
    difference: OutputDifferences


def write(lab: Lab, request: Request, job: Job) -> Search:
    """The beam search step by step: see `decoding.trace_search`. Tokens come with their text."""
    beams, penalty = request.get("beams", 4), request.get("penalty", 1.0)
    if not isinstance(beams, int) or not isinstance(penalty, int | float) or not 0 <= penalty <= 5:
        raise BadInput(f"beams is {beams!r:.20} and penalty {penalty!r:.20}; give a whole number and one from 0 to 5.")
    loaded = lab.open(request.get("model"), job)
    if not isinstance(loaded.model, EncoderDecoderModel):
        raise BadInput(
            f"{loaded.entry.name} reads {loaded.modality} and generates no text. Choose a model that reads a text or a "
            "recording and generates a text."
        )
    source = read_source(lab, loaded, loaded.model, request.get("input"))
    target = find_tokenizer(loaded.model, loaded.task).target
    rules = generation_rules(loaded.model, loaded.task, target)
    most = max_new_tokens(loaded.model, source.max_new, len(rules.start))
    with job.hold(loaded.lock):
        trace = trace_search(
            loaded.model,
            source.arguments,
            beams=beams,
            length_penalty=float(penalty),
            max_new=most,
            rules=rules,
            job=job,
        )
    steps = write_candidates(target, trace["steps"])
    finished: list[WrittenText] = [
        {**hypothesis, "text": join_tokens(target.decode(hypothesis["tokens"]))} for hypothesis in trace["finished"]
    ]
    tokens = [token.as_dict() for token in source.tokens]
    return {"tokens": tokens, "steps": steps, "finished": finished, "start": trace["start"]}


def write_candidates(target: Tokenizer, steps: list[list[Candidate]]) -> list[list[WrittenCandidate]]:
    """The candidates of a search with their texts and those of the beams that they continue."""
    written: list[list[WrittenCandidate]] = []
    beams: dict[int, list[int]] = {}
    for step in steps:
        texts = {slot: join_tokens(target.decode(tokens)) for slot, tokens in beams.items()}
        written.append(
            [
                {
                    **candidate,
                    "piece": decode_tokens(target, [candidate["token"]])[0].text,
                    "prefix": texts.get(candidate["parent"], ""),
                }
                for candidate in step
            ]
        )
        beams = {
            candidate["slot"]: [*beams.get(candidate["parent"], []), candidate["token"]]
            for candidate in step
            if "slot" in candidate
        }
    return written


def read_source(lab: Lab, loaded: LoadedModel, model: EncoderDecoderModel, fields: Json) -> Source:
    """The encoder's input: a text, or a recording."""
    fields = fields if isinstance(fields, dict) else {}
    if loaded.modality == "sound":
        return audio_source(model, loaded.task, lab.file_reader(loaded)(fields))
    return text_source(model, loaded.task, check_text(fields))


def read(lab: Lab, request: Request, job: Job) -> CrossWeights:
    """The cross-attention of one head, or the mean of a layer's heads.

    Row t is the token that is generated; its query is at the token before it. `weights [targets, sources]` and `outside
    [targets]` sum to one in each row: the padding after a recording is left out of the columns. `norms` are
    ‖weight · value · W_O‖ (the mean over heads, where the mean is requested).
    """
    capture = lab.capture(request, job)
    crossed = [layer for layer in capture.attentions if layer.role == "cross" and layer.query_side == "target"]
    metadata = capture.metadata
    written = metadata.get("target_tokens")
    if not crossed or written is None:
        raise BadInput("This model has no cross-attention. Choose an encoder-decoder model.")
    number = len(crossed) - 1
    if request.get("attention") is not None:
        number = check_index(request["attention"], len(crossed), "attention")
    attention, head = crossed[number], None
    if request.get("head") is not None:
        head = check_index(request["head"], attention.heads, "head")
    columns = metadata["heard"] if is_sound(metadata) else attention.keys
    target_tokens: list[TargetToken] = [
        {**token, "probability": item["probability"]}
        for token, item in zip(written, capture.prediction["items"], strict=True)
    ]
    weights = select_head(attention.weights(None), head)
    return {
        "tokens": [token.as_dict() for token in capture.tokens[attention.key_side][:columns]],
        "side": attention.key_side,
        "notices": capture.notices,
        "seconds_per_token": metadata["seconds_per_token"] if is_sound(metadata) else None,
        "text": capture.prediction.get("text"),
        "target_tokens": target_tokens,
        "generated": bool(metadata.get("generated")),
        "attentions": [describe_with_backend(layer) for layer in crossed],
        "attention": number,
        "head": head,
        "weights": weights[:, :columns],
        "outside": weights[:, columns:].sum(-1),
        "norms": norms(attention, head, columns),
        "masked": ~attention.stages(head or 0, (0, attention.queries), (0, columns))[0].allowed,
        "difference": output_differences(capture, job),
    }


def norms(attention: CapturedAttention, head: int | None, columns: int) -> Tensor | None:
    """How long the vector is that each source token adds; None where the projection is not known."""
    if attention.value_lengths is None:
        return None
    return select_head(
        torch.stack([attention.value_norms(each, None, (0, columns)) for each in range(attention.heads)]), head
    )


CALLS = {"write": write, "read": read}
