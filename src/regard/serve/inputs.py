"""Inputs of requests: JSON or encoded files become what the task reads, within the limits.

A path in a request is never opened: images and recordings come as bytes, base64 or numbers.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch
from torch import Tensor

from ..data.images import ENDINGS as IMAGE_ENDINGS
from ..data.images import open_image
from ..data.json_values import JsonValue
from ..data.sound import ENDINGS as SOUND_ENDINGS
from ..data.sound import Samples
from ..errors import BadInput, Missing, Unsupported
from ..inference.predictor import Predictor
from .limits import RefusedRequest, ServingLimits

Modality = Literal["text", "image", "sound"]
MAX_NUMBER = 10**18
EXAMPLE_TEXT = "The cat sat on the mat."
EXAMPLES: dict[Modality, JsonValue] = {
    "text": EXAMPLE_TEXT,
    "image": {"image": "iVBORw0KGgo…"},
    "sound": {"audio": "UklGR…"},
}


def modality_of(predictor: Predictor) -> Modality:
    """What the model reads; `Unsupported` where its inputs cannot be sent in a request."""
    task = predictor.task
    if task.compares_inputs:
        raise Unsupported(
            "This model compares its inputs with each other, and a server answers each alone. Use regard predict."
        )
    files = set(task.input_files)
    if not files:
        return "text"
    if files & set(IMAGE_ENDINGS):
        return "image"
    if files & set(SOUND_ENDINGS):
        return "sound"
    raise Unsupported(
        f"This model reads files (.{', .'.join(task.input_files)}), which a request cannot hold. Use regard predict."
    )


@dataclass(frozen=True)
class RequestReader:
    """Reads the inputs of a request for a model of this modality."""

    modality: Modality
    limits: ServingLimits

    def read(self, body: bytes, media_type: str) -> tuple[list[object], bool]:
        """The inputs of a body, and whether the answer is a list of results."""
        if media_type.startswith(("image/", "audio/")):
            return [self.decode(body)], False
        if media_type != "application/json":
            raise RefusedRequest(
                415, "media_type", f"The content type is {media_type or 'missing'!r:.80}. Send application/json."
            )
        document = parse_json(body)
        if not isinstance(document, dict) or ("input" in document) == ("inputs" in document):
            raise RefusedRequest(422, "bad_request", 'Send {"input": …} for one input, or {"inputs": [ … ]} for many.')
        if unknown := [name for name in document if name not in ("input", "inputs")]:
            raise RefusedRequest(422, "bad_request", f"There is no field {unknown[0]!r:.60}. Send input or inputs.")
        if "input" in document:
            return [self.item(document["input"])], False
        items = document["inputs"]
        if not isinstance(items, list):
            raise RefusedRequest(422, "bad_request", f"inputs is a {type(items).__name__}; send a list.")
        if len(items) > self.limits.items:
            raise RefusedRequest(
                413, "too_many", f"There are {len(items)} inputs, at most {self.limits.items} in a request."
            )
        return [self.item(item) for item in items], True

    def item(self, value: JsonValue) -> object:
        """One input as the task reads it."""
        if self.modality == "text":
            self.check_texts(value)
            return value
        value = value if isinstance(value, dict) else {self.modality: value}
        if self.modality == "sound" and "samples" in value:
            return self.check_samples(value)
        names = ("image",) if self.modality == "image" else ("audio", "sound")
        content = next((value[name] for name in names if name in value), None)
        if isinstance(content, str):
            return self.decode(self.from_base64(content))
        if isinstance(content, list) and self.modality == "image":
            return self.check_pixels(content)
        more = (
            ' or {"samples": […], "sample_rate": 16000}' if self.modality == "sound" else " or pixels as nested lists"
        )
        raise RefusedRequest(422, "bad_input", f'An input must be {{"{names[0]}": base64}}{more}.')

    def check_texts(self, value: JsonValue) -> None:
        """Refuse what is neither text nor an object of texts and numbers, long texts, and broken Unicode."""
        if not isinstance(value, str | dict):
            raise RefusedRequest(
                422, "bad_input", f"An input is a {type(value).__name__}; send a text, or an object of texts."
            )
        texts = [value] if isinstance(value, str) else texts_in(value)
        if (total := sum(map(len, texts))) > self.limits.characters:
            raise RefusedRequest(
                413, "too_long", f"A text has {total} characters, at most {self.limits.characters} are read."
            )
        try:
            for text in texts:
                text.encode()
        except UnicodeEncodeError:
            raise RefusedRequest(422, "bad_input", "A text has half of a surrogate pair. Send valid Unicode.") from None

    def check_samples(self, value: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        """The samples of a recording with their rate, which the task checks."""
        samples = value["samples"]
        if not isinstance(samples, list) or len(samples) > self.limits.samples:
            raise RefusedRequest(413, "too_long", f"samples must be a list of at most {self.limits.samples} numbers.")
        numbers = [n for n in samples if isinstance(n, int | float) and not isinstance(n, bool) and -1e6 < n < 1e6]
        if len(numbers) < len(samples):
            raise RefusedRequest(422, "bad_input", "samples must be finite numbers.")
        return {"samples": [float(number) for number in numbers], "sample_rate": value.get("sample_rate")}

    def check_pixels(self, rows: list[JsonValue]) -> Tensor:
        """The pixels of an image in nested lists."""
        try:
            pixels = torch.tensor(rows)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise RefusedRequest(422, "bad_input", "The pixels are no array of numbers.") from None
        if pixels.numel() > self.limits.pixels:
            raise RefusedRequest(413, "too_large", f"An image has more than {self.limits.pixels} numbers.")
        return pixels

    def from_base64(self, text: str) -> bytes:
        encoded = text.partition("base64,")[2] if text.startswith("data:") else text
        try:
            return b64decode(encoded, validate=True)
        except ValueError:
            raise RefusedRequest(422, "bad_input", "An input is no base64. Encode the bytes of a file.") from None

    def decode(self, data: bytes) -> bytes | Samples:
        """The bytes of an image, whose size is checked before it is decoded, or the samples of a recording."""
        if self.modality == "image":
            self.check_image(data)
            return data
        if self.modality == "sound":
            return decode_sound(data, self.limits.samples)
        raise RefusedRequest(415, "media_type", "This model reads texts. Send application/json.")

    def check_image(self, data: bytes) -> None:
        try:
            with open_image(data) as image:
                pixels = image.width * image.height
        except Exception:  # of pillow's many formats
            raise RefusedRequest(422, "bad_input", "The image is in no known format. Send a JPEG or PNG.") from None
        if pixels > self.limits.pixels:
            raise RefusedRequest(413, "too_large", f"The image has {pixels} pixels, more than {self.limits.pixels}.")


def texts_in(value: Mapping[str, JsonValue]) -> list[str]:
    """The texts of an object, also of lists in it; its other values must be numbers, booleans or null."""
    texts: list[str] = []
    for name, item in value.items():
        texts.append(str(name))
        for part in item if isinstance(item, list) else [item]:
            if isinstance(part, str):
                texts.append(part)
            elif not (part is None or (isinstance(part, int | float) and abs(part) < MAX_NUMBER)):
                raise RefusedRequest(
                    422, "bad_input", f"The field {name!r:.60} of an input is neither text nor a number below 1e18."
                )
    return texts


def parse_json(body: bytes) -> JsonValue:
    """The document of a body; numbers that JSON does not have, such as NaN, are refused."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(body.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RefusedRequest(400, "bad_json", f"The body is no JSON in UTF-8: {reason:.200}") from None


def decode_sound(data: bytes, most: int) -> Samples:
    """The samples of an encoded recording, one channel."""
    try:
        import soundfile
    except ImportError:
        raise Missing('Reading recordings needs soundfile: pip install "regard[train]".') from None
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if not 0 < file.frames <= most:
                raise RefusedRequest(413, "too_long", f"The recording has {file.frames} samples; send 1 to {most}.")
            rows, rate = file.read(dtype="float32", always_2d=True), file.samplerate
    except soundfile.SoundFileError:
        raise RefusedRequest(422, "bad_input", "The recording is in no known format. Send WAV or FLAC.") from None
    samples = torch.from_numpy(rows).mean(1)
    if not bool(torch.isfinite(samples).all()):
        raise BadInput("The recording has samples that are not finite.")
    return Samples(samples, rate)
