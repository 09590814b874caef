"""Recordings with a label or a transcript, as files that are decoded when they are needed or as arrays."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ..errors import BadInput, Missing
from ..limits import SAMPLE_RATE, SOUND_SAMPLES
from ..nn.embeddings.audio import check_complete, read_sound, resample
from .arrays import Arrays
from .files import Paths, file_format, read_file_lines, read_text, resolve_paths
from .listing import PATH_NAMES, ListedFile, class_folders, file_extension, listed_files
from .reading import Fault, FaultCollector, Reading, ReadingBuilder, raise_fault, raise_fault_from
from .tables import ColumnSpec
from .tables.label_types import LabelType
from .text import LABEL_NAMES, TEXT_NAMES

if TYPE_CHECKING:
    import soundfile

ENDINGS = ("wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "au")
SOUND_NAMES = ("audio", "sound", "wav", "recording", "audio_path", "wav_filename", *PATH_NAMES, "音频", "录音")
TRANSCRIPT_NAMES = ("transcript", "transcription", *TEXT_NAMES, "转写", "抄本")
SAMPLES = ("audio", "sound", "samples", "wave")
LOWEST_RATE = 8000
"""Samples a second that every recording is resampled to at least."""
MAGIC = (b"RIFF", b"fLaC", b"OggS", b"FORM", b".snd", b"ID3\x03", b"ID3\x04", b"\xff\xfb\x90\x64", b"\xff\xfb\x90\x00")
"""How encoded recordings begin."""
FRAMES = ("mfcc", "frames", "features", "mel", "log_mel")


@dataclass(frozen=True)
class SoundFile:
    """A recording in a file, decoded when `load` is called."""

    path: Path

    def load(self, rate: int | None = None) -> tuple[Tensor, int]:
        """(float32 `[samples]` from −1 to 1, sample rate), resampled if a rate is given."""
        check_sound_size(self.path, rate)
        return read_sound(self.path, rate)


@dataclass(frozen=True, eq=False)
class Samples:
    """A recording in memory, `[samples]`: floats from −1 to 1, or integers over the range of their type."""

    values: Tensor
    rate: int

    def load(self, rate: int | None = None) -> tuple[Tensor, int]:
        """As `SoundFile.load`.

        >>> Samples(torch.tensor([-32768, 16384], dtype=torch.int16), 8000).load()
        (tensor([-1.0000,  0.5000]), 8000)
        """
        values = self.values
        if message := excess_samples(len(values), self.rate, rate):
            raise BadInput(f"A recording of {len(values)} samples cannot be read: {message}")
        if not values.is_floating_point():
            values = values.float() / (torch.iinfo(values.dtype).max + 1)
        rate = self.rate if rate is None else rate
        return resample(values.float(), self.rate, rate), rate


@dataclass(frozen=True, eq=False)
class LabelledSound:
    """A recording and its class."""

    sound: SoundFile | Samples
    label: str
    split: str = ""


@dataclass(frozen=True, eq=False)
class Spoken:
    """A transcript with its recording or its feature frames `[frames, bins]`; the other is None."""

    text: str
    sound: SoundFile | Samples | None = None
    frames: Tensor | None = None
    split: str = ""


def import_soundfile() -> ModuleType:
    """The module soundfile; `Missing` if it is not installed."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise Missing(f'Reading sound needs soundfile ({error}): pip install "regard[train]".') from None
    return soundfile


def excess_samples(samples: int, rate: int, new_rate: int | None) -> str:
    """The message for a recording that is too long, also after resampling, or has an impossible rate; '' if not."""
    if rate < 1:
        return f"its rate is {rate} samples a second; wanted 1 at least."
    new_samples = samples if new_rate is None else samples * new_rate // rate
    return SAMPLE_RATE.excess(rate) or SOUND_SAMPLES.excess(max(samples, new_samples))


def check_sound_size(path: Path, rate: int | None = None) -> None:
    """`BadInput` for a recording that is too long, also when it is resampled to `rate`, by its header."""
    soundfile = import_soundfile()
    try:
        info = soundfile.info(str(path))
    except (soundfile.LibsndfileError, RuntimeError, OSError):
        return  # whoever reads it says what is wrong
    if message := excess_samples(info.frames * info.channels, info.samplerate, rate):
        raise BadInput(f"{path} cannot be read as sound: {message}")


def check_sound(path: Path) -> None:
    """Check the header and the last sample of a recording; `BadInput` if it is damaged, truncated or empty."""
    soundfile = import_soundfile()
    check_complete(path)
    check_sound_size(path, LOWEST_RATE)
    try:
        with soundfile.SoundFile(path) as file:
            length, complete = file.frames, has_last_sample(file)
            floats = file.subtype in ("FLOAT", "DOUBLE")
    except (soundfile.LibsndfileError, RuntimeError) as error:
        raise BadInput(
            f"{path} cannot be read as sound: {str(error).rstrip('.')}. Give a WAV, FLAC or OGG file."
        ) from None
    if length <= 0:
        raise BadInput(f"{path} is a sound of no length. Record it again, or leave it out.")
    if not complete:
        raise BadInput(f"{path} is cut: the last of {length} samples is not there. Get the whole file.")
    if floats:
        read_sound(path)  # only such files can have NaN or infinite samples


def has_last_sample(file: soundfile.SoundFile) -> bool:
    """Whether an open sound file has the last of the samples that its header counts."""
    try:
        file.seek(max(0, file.frames - 1))
        return len(file.read(1)) == 1
    except RuntimeError:
        return False


def decode_samples(data: bytes, name: Path) -> Samples:
    """The samples of an encoded recording in memory."""
    soundfile = import_soundfile()
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if message := excess_samples(file.frames * file.channels, file.samplerate, LOWEST_RATE):
                raise BadInput(f"{name} cannot be read as sound: {message}")
            samples = torch.from_numpy(file.read(dtype="float32", always_2d=True)).mean(1)
            rate = file.samplerate
    except (soundfile.LibsndfileError, RuntimeError) as error:
        raise BadInput(f"{name} cannot be read as sound: {str(error).rstrip('.')}.") from None
    if not len(samples) or not bool(torch.isfinite(samples).all()):
        raise BadInput(f"{name} has no samples, or some that are not finite. Record it again, or leave it out.")
    return Samples(samples, rate)


def check_listed_sound(listed: ListedFile) -> SoundFile | Samples:
    """The recording; `MalformedData` at the location that names it if it cannot be read."""
    try:
        if listed.data is not None:
            return decode_samples(listed.data, listed.path)
        check_sound(listed.path)
    except BadInput as error:
        raise_fault_from(error, *listed.location)
    return SoundFile(listed.path)


def read_sounds(
    paths: Paths,
    *,
    sound: str | int | None = None,
    label: str | int | None = None,
    folder: str | Path | None = None,
    target: LabelType | Literal["auto"] = "class",
) -> Reading[LabelledSound]:
    """Labelled recordings: a folder with a folder for each class; a table of paths and labels; or NPZ.

    Paths in a table are relative to `folder`, by default the table's own; a label there that is no number is a fault
    where `target` says that labels are numbers. NPZ: all samples in `audio`, `offsets
    [n + 1]`, `rate`, and labels in the array `label`; an array such as is_test assigns examples to splits.
    """
    builder = ReadingBuilder[LabelledSound]()
    for path in resolve_paths(paths, folders=True):
        with builder.reading(path):
            if path.is_dir():
                builder.each(class_folders(path, ENDINGS, builder), labelled_file)
            elif file_format(path) == "npz":
                labelled_arrays(Arrays(path), label, builder)
            else:
                roles = ColumnSpec("sound", sound, SOUND_NAMES), ColumnSpec("label", label, LABEL_NAMES)
                files = listed_files(path, *roles, Path(folder) if folder else None, builder, target)
                builder.each(files, labelled_file)
    return builder.build()


def labelled_file(listed: ListedFile) -> LabelledSound:
    return LabelledSound(check_listed_sound(listed), listed.text, listed.split)


def labelled_arrays(arrays: Arrays, label: str | int | None, builder: ReadingBuilder[LabelledSound]) -> None:
    """The labelled recordings of an NPZ file."""
    name = str(label) if label is not None else arrays.find((*LABEL_NAMES, "labels"), "label", "label")
    samples, offsets, rate = read_samples(arrays)
    labels, splits = arrays.labels(name, len(offsets) - 1), arrays.splits(len(offsets) - 1)
    builder.note(f"{arrays.path.name}: label = {name!r}, {rate} samples a second")

    def make(n: int) -> LabelledSound:
        if not labels[n]:
            arrays.raise_fault(name, f"has no class's name at {n}.")
        return LabelledSound(Samples(cut_recording(arrays, samples, offsets, n), rate), labels[n], splits[n])

    builder.each(range(len(offsets) - 1), make)


def read_samples(arrays: Arrays) -> tuple[Tensor, list[int], int]:
    """(samples of all recordings, the offset of each, sample rate)."""
    name = arrays.find(SAMPLES, "sound", "sound")
    array, rate = arrays.get(name, "sound"), arrays.get("rate", "samples a second")
    if array.ndim != 1 or str(array.dtype) not in ("int16", "int32", "float16", "float32", "float64"):
        arrays.raise_fault(name, f"is {array.dtype} {list(array.shape)}; wanted int16 or float32 [samples].")
    if rate.size != 1 or rate.dtype.kind not in "uif" or not 1 <= rate.item() <= SAMPLE_RATE.value:
        limit = f"from 1 to {SAMPLE_RATE.value} ({SAMPLE_RATE.variable})"
        arrays.raise_fault("rate", f"is {rate!r:.60}; wanted one number of samples a second, {limit}.")
    return torch.from_numpy(array), arrays.offsets(len(array), name), int(rate.item())


def cut_recording(arrays: Arrays, rows: Tensor, offsets: list[int], n: int) -> Tensor:
    """The rows of recording `n`; `MalformedData` if there are none or some are not finite."""
    if offsets[n] == offsets[n + 1]:
        raise_fault(arrays.path, f"recording {n} has no length (offsets {offsets[n]} and {offsets[n + 1]}).")
    recording = rows[offsets[n] : offsets[n + 1]]
    if recording.is_floating_point() and not recording.isfinite().all():
        raise_fault(arrays.path, f"recording {n} has numbers that are not finite (NaN or infinite). Leave it out.")
    return recording


def read_spoken(
    paths: Paths, *, sound: str | int | None = None, text: str | int | None = None, folder: str | Path | None = None
) -> Reading[Spoken]:
    """Recordings with transcripts: a table of paths and texts, a folder, or NPZ.

    In a folder each recording has a text file of the same name beside it, or a line `name text` in a `.trans.txt` file.
    NPZ: feature frames of all recordings in `mfcc [frames, bins]`, or samples in `audio` with `rate`; `offsets [n + 1]`
    and `text`.
    """
    builder = ReadingBuilder[Spoken]()
    for path in resolve_paths(paths, folders=True):
        with builder.reading(path):
            if path.is_dir():
                builder.each(transcribed_folder(path, builder), spoken_file)
            elif file_format(path) == "npz":
                spoken_arrays(Arrays(path), text, builder)
            else:
                roles = ColumnSpec("sound", sound, SOUND_NAMES), ColumnSpec("text", text, TRANSCRIPT_NAMES)
                builder.each(listed_files(path, *roles, Path(folder) if folder else None, builder), spoken_file)
    return builder.build()


def spoken_file(listed: ListedFile) -> Spoken:
    return Spoken(listed.text, sound=check_listed_sound(listed), split=listed.split)


def transcribed_folder(root: Path, builder: FaultCollector) -> Iterator[ListedFile]:
    """The recordings of a folder and its subfolders, with the texts beside them."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and file_extension(path) in ENDINGS]
    if not files:
        raise_fault(root, f"has no recordings; wanted files named .{', .'.join(ENDINGS)}.")
    lines: dict[Path, str] = {}
    for path in sorted(root.rglob("*.trans.txt")):
        with builder.catching():
            lines.update(transcripts(path, builder))
    for path in files:
        with builder.catching():
            yield ListedFile(path, find_transcript(path, lines), "", (str(path), None, None))


def transcripts(path: Path, builder: FaultCollector) -> dict[Path, str]:
    """The texts of a file of lines `name text`, by the paths of the recordings without extension."""
    texts = {}
    for number, line in enumerate(read_file_lines(path), 1):
        name, _, text = line.strip().partition(" ")
        if name and text.strip():
            texts[path.parent / name] = text.strip()
        elif name:
            builder.faults.append(Fault(str(path), number, len(name) + 1, f"the recording {name!r} has no text."))
    return texts


def find_transcript(path: Path, lines: dict[Path, str]) -> str:
    """The text of a recording, from a file beside it or from the lines of a `.trans.txt` file."""
    beside = path.with_suffix(".txt")
    if beside.is_file():
        return " ".join(read_text(beside).split())
    if (text := lines.get(path.with_suffix(""))) is None:
        raise_fault(path, f"has no text: neither {beside.name} nor a line in a .trans.txt beside it.")
    return text


def spoken_arrays(arrays: Arrays, text: str | int | None, builder: ReadingBuilder[Spoken]) -> None:
    """The recordings or frames of an NPZ file with their texts."""
    name = str(text) if text is not None else arrays.find((*TRANSCRIPT_NAMES, "texts"), "text", "text")
    frames = next((candidate for candidate in FRAMES if candidate in arrays), None)
    rows, offsets, rate = read_frames(arrays, frames) if frames else read_samples(arrays)
    texts, splits = arrays.texts(name, len(offsets) - 1, "text", "text"), arrays.splits(len(offsets) - 1)
    builder.note(
        f"{arrays.path.name}: {f'frames = {frames!r}' if frames else f'{rate} samples a second'}, text = {name!r}"
    )

    def make(n: int) -> Spoken:
        values = cut_recording(arrays, rows, offsets, n)
        if not texts[n]:
            arrays.raise_fault(name, f"is empty at {n}.")
        if frames:
            return Spoken(texts[n], frames=values, split=splits[n])
        return Spoken(texts[n], sound=Samples(values, rate), split=splits[n])

    builder.each(range(len(offsets) - 1), make)


def read_frames(arrays: Arrays, name: str) -> tuple[Tensor, list[int], int]:
    """(frames of all recordings, the offset of each, 0 for the sample rate)."""
    array = arrays.get(name, "frames")
    if array.ndim != 2 or array.dtype.kind != "f":
        arrays.raise_fault(name, f"is {array.dtype} {list(array.shape)}; wanted floats [frames, bins].")
    return torch.from_numpy(array), arrays.offsets(len(array), name), 0
