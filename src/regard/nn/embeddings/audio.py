"""Audio features and their embeddings: samples → frames of a spectrogram → vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.parts.part import check_count
from ...errors import BadInput, Missing
from ..packing import real_tokens, zero_padding

MAX_RATIO = 10_000
"""The largest denominator of a ratio of sample rates."""
UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
"""Sizes in WAV files that were written to a pipe: unknown."""


def slaney_mel(hertz: Tensor) -> Tensor:
    """Linear below 1000 Hz (15 mel), then 27 mel for each factor of 6.4."""
    return torch.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * (hertz.clamp(min=1) / 1000).log() / math.log(6.4))


def slaney_hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < 15, mels * 200 / 3, 1000 * torch.exp((mels - 15) * math.log(6.4) / 27))


def htk_mel(hertz: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + hertz / 700)


def htk_hertz(mels: Tensor) -> Tensor:
    return 700 * (10 ** (mels / 2595) - 1)


def whisper_log(x: Tensor) -> Tensor:
    x = x.log10()
    return (torch.maximum(x, x.amax((-2, -1), keepdim=True) - 8) + 4) / 4


SCALES = {"slaney": (slaney_mel, slaney_hertz), "htk": (htk_mel, htk_hertz)}
LOGS = {"whisper": whisper_log, "log10": torch.log10, "natural": torch.log, "decibel": lambda x: 10 * x.log10()}


@dataclass(frozen=True)
class Mel:
    """The settings of a mel spectrogram; the defaults are Whisper's.

    Frames of `window` samples (Hann, `fft` unless given), one every `hop`, |FFT|^power over `fft` points, `bins`
    triangles from `low` to `high` hertz (half the rate unless given) on Slaney's scale (triangles of equal area) or
    HTK's (of equal height), then the logarithm of values clamped to `floor`:

        log10:    log₁₀ x                    natural:  ln x              decibel:  10 log₁₀ x
        whisper:  log₁₀ x, clamped to 8 below the maximum, + 4, / 4
    """

    bins: int = 80
    fft: int = 400
    hop: int = 160
    window: int | None = None
    low: float = 0.0
    high: float | None = None
    scale: Literal["slaney", "htk"] = "slaney"
    power: float = 2.0
    log: Literal["whisper", "log10", "natural", "decibel"] = "whisper"
    floor: float = 1e-10

    def __post_init__(self) -> None:
        for name in ("bins", "fft", "hop"):
            check_count(getattr(self, name), f"Mel's {name}", 1)
        if self.window is not None and not 1 <= self.window <= self.fft:
            raise BadInput(f"Mel's window is {self.window} samples; it must be from 1 to fft = {self.fft}.")
        if self.scale not in SCALES:
            raise BadInput(f"Mel's scale is {self.scale!r}; it must be 'slaney' or 'htk'.")
        if self.log not in LOGS:
            raise BadInput(f"Mel's log is {self.log!r}; it must be one of {', '.join(LOGS)}.")

    def frames(self, samples: int) -> int:
        """The number of frames of so many samples."""
        return max(samples // self.hop, 1)


WHISPER = Mel()
SPEECH = Mel(bins=26, fft=512, window=400, scale="htk", log="natural")


def log_mel(sound: Tensor, rate: int, mel: Mel = WHISPER) -> Tensor:
    """The logarithm of a sound's mel spectrogram: `[..., samples]` → `[..., samples // hop, bins]`.

    Frame t is centred on sample t · hop; beyond its ends the sound is reflected. Sound shorter than a frame is padded
    with zeros.

    >>> log_mel(torch.sin(torch.arange(16000) / 5), rate=16000).shape
    torch.Size([100, 80])
    """
    if not sound.dtype.is_floating_point:
        raise BadInput(f"sound is {sound.dtype}; it must be floating point, from −1 to 1. Divide by the largest value.")
    if not sound.dim() or not sound.shape[-1]:
        raise BadInput(f"sound has shape {list(sound.shape)}; it must be [..., samples] with at least one sample.")
    power = spectrum(sound, mel)
    filters = mel_filters(rate, mel).to(power)
    return LOGS[mel.log]((power.mT @ filters).clamp(min=mel.floor))


def mfcc(sound: Tensor, rate: int, mel: Mel = SPEECH, count: int = 13) -> Tensor:
    """Cepstral coefficients: the first `count` of the orthonormal cosine transform (II) of each frame's log mel bins.

        c_n = √(2/bins) · Σ_m x_m cos(π n (m + ½) / bins),   c_0 over √2

    `[..., samples]` → `[..., frames, count]`.

    >>> mfcc(torch.sin(torch.arange(16000) / 5), rate=16000).shape
    torch.Size([100, 13])
    """
    if not 1 <= count <= mel.bins:
        raise BadInput(f"count is {count}; {mel.bins} bins give from 1 to {mel.bins} coefficients.")
    x = log_mel(sound, rate, mel)
    n, m = torch.arange(count, dtype=torch.float64), torch.arange(mel.bins, dtype=torch.float64)
    cosines = math.sqrt(2 / mel.bins) * torch.cos(math.pi / mel.bins * (m[:, None] + 0.5) * n)
    cosines[:, 0] /= math.sqrt(2)
    return x @ cosines.to(x)


def spectrum(sound: Tensor, mel: Mel) -> Tensor:
    """|FFT|^power of each frame, `[..., fft // 2 + 1, frames]`."""
    rows = sound.reshape(-1, sound.shape[-1])
    rows = functional.pad(rows, (0, max(mel.fft - rows.shape[-1], 0)))
    window = mel.window or mel.fft
    shape = torch.hann_window(window, dtype=sound.dtype, device=sound.device)
    waves = torch.stft(rows, mel.fft, mel.hop, window, shape, center=True, pad_mode="reflect", return_complex=True)
    power = waves[..., : mel.frames(sound.shape[-1])].abs() ** mel.power
    return power.reshape(*sound.shape[:-1], *power.shape[1:])


def mel_filters(rate: int, mel: Mel) -> Tensor:
    """The triangular filters, `[fft // 2 + 1, bins]`."""
    high = rate / 2 if mel.high is None else mel.high
    if not 0 <= mel.low < high <= rate / 2:
        raise BadInput(f"Bins from {mel.low} to {high} Hz do not fit a rate of {rate}: 0 ≤ low < high ≤ {rate / 2}.")
    to_mel, to_hertz = SCALES[mel.scale]
    first, last = to_mel(torch.tensor([mel.low, high], dtype=torch.float64)).tolist()
    edges = to_hertz(torch.linspace(first, last, mel.bins + 2, dtype=torch.float64))
    hertz = torch.arange(mel.fft // 2 + 1, dtype=torch.float64)[:, None] * (rate / mel.fft)
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    triangles = torch.minimum((hertz - left) / (middle - left), (right - hertz) / (right - middle)).clamp(min=0)
    return triangles * (2 / (right - left)) if mel.scale == "slaney" else triangles


class SoundFrames(nn.Module):
    """Frames as vectors: `stack` of them, every `stride` (all of them once, unless given), through a linear map.

        y_t = W · concat(x_{t·stride}, …, x_{t·stride + stack − 1}) + b,   zeros beyond the end

    `(x [batch, frames, bins], lengths [batch] or None)` → `(y [batch, ⌈frames / stride⌉, dim], their lengths or None)`.

    >>> y, lengths = SoundFrames(bins=80, dim=16, stack=4)(torch.randn(2, 10, 80), torch.tensor([10, 4]))
    >>> y.shape, lengths.tolist()
    (torch.Size([2, 3, 16]), [3, 1])
    """

    def __init__(self, bins: int, dim: int, stack: int = 4, stride: int | None = None) -> None:
        super().__init__()
        check_count(stack, "SoundFrames' stack", 1)
        self.bins, self.stack, self.stride = bins, stack, stack if stride is None else stride
        check_count(self.stride, "SoundFrames' stride", 1)
        self.projection = nn.Linear(stack * bins, dim)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = check_frames(x, self.bins)
        x = zero_padding(x, None if lengths is None else real_tokens(x, lengths))
        count = -(-x.shape[1] // self.stride)
        x = functional.pad(x, (0, 0, 0, max((count - 1) * self.stride + self.stack - x.shape[1], 0)))
        stacked = x.unfold(1, self.stack, self.stride)[:, :count].mT.flatten(2)  # [batch, count, stack · bins]
        return self.projection(stacked), None if lengths is None else strided_lengths(lengths, self.stride)


class SoundConvolutions(nn.Module):
    """Frames as vectors through two convolutions of three frames with GELU, the second with stride 2, as in Whisper.

    `(x [batch, frames, bins], lengths [batch] or None)` → `(y [batch, ⌈frames / 2⌉, dim], their lengths or None)`.

    >>> SoundConvolutions(bins=80, dim=16)(torch.randn(2, 10, 80))[0].shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, bins: int, dim: int) -> None:
        super().__init__()
        self.bins = bins
        self.conv1 = nn.Conv1d(bins, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = check_frames(x, self.bins)
        real = None if lengths is None else real_tokens(x, lengths)
        # convolutions read zeros beyond the end of a row, as without padding
        x = zero_padding(functional.gelu(self.conv1(zero_padding(x, real).mT)).mT, real)
        return functional.gelu(self.conv2(x.mT)).mT, None if lengths is None else strided_lengths(lengths, 2)


def strided_lengths(lengths: Tensor, stride: int) -> Tensor:
    """⌈lengths / stride⌉."""
    return (lengths + stride - 1) // stride


def check_frames(x: Tensor, bins: int) -> Tensor:
    if x.dim() != 3 or x.shape[2] != bins or not x.shape[1]:
        raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, frames, {bins}] with at least one frame.")
    return x


def read_sound(path: str | Path, rate: int | None = None) -> tuple[Tensor, int]:
    """(samples, rate) of a sound file (WAV, FLAC, OGG, …): float32 `[samples]` from −1 to 1, channels averaged.

    Resampled to `rate` when that is given. Raises `BadInput`, with the file, for a file that is not sound, is empty or
    is cut, and `Missing` without the package that reads them.
    """
    path = Path(path)
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise Missing(f'Reading sound needs soundfile ({error}): pip install "regard[train]".') from None
    check_complete(path)
    try:
        with soundfile.SoundFile(path) as file:
            samples, own_rate, frames = file.read(dtype="float32", always_2d=True), file.samplerate, file.frames
    except (soundfile.LibsndfileError, RuntimeError) as error:
        raise BadInput(
            f"{path} cannot be read as sound: {str(error).rstrip('.')}. Give a WAV, FLAC or OGG file."
        ) from None
    if not len(samples):
        raise BadInput(f"{path} has no samples. Record it again, or leave it out.")
    if len(samples) < frames:
        raise BadInput(f"{path} is cut: {len(samples)} of {frames} samples. Get the whole file.")
    mono = torch.from_numpy(samples).mean(1)
    if not mono.isfinite().all():
        raise BadInput(f"{path} has samples that are no numbers (NaN or infinite). Save it again, or leave it out.")
    return (mono, own_rate) if rate is None else (resample(mono, own_rate, rate), rate)


def check_complete(path: Path) -> None:
    """Raise unless the file exists and, if it is a WAV, is as long as its header says."""
    try:
        with path.open("rb") as file:
            start = file.read(12)
            if start[:4] != b"RIFF" or start[8:] != b"WAVE":
                return
            size = path.stat().st_size
            while len(head := file.read(8)) == 8:
                name, length = head[:4], int.from_bytes(head[4:], "little")
                left = size - file.tell()
                if name == b"data" and length not in UNKNOWN_SIZES and length > left:
                    raise BadInput(f"{path} is cut: {left} of {length} bytes of sound. Get the whole file.")
                file.seek(length + length % 2, 1)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}. Give the path of a sound file.") from None


def resample(sound: Tensor, rate: int, new_rate: int) -> Tensor:
    """The sound `[..., samples]` at another rate, through a low-pass filter."""
    check_count(new_rate, "rate", 1)
    if rate == new_rate:
        return sound
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise Missing('Resampling needs scipy: pip install "regard[train]".') from None
    # Rates without a common factor need a filter as long as they are; this ratio is off by 1e-8 at most.
    ratio = Fraction(new_rate, rate).limit_denominator(MAX_RATIO)
    if not ratio.numerator:
        raise BadInput(f"A rate of {rate} samples a second cannot become {new_rate}. Record it at a usual rate.")
    resampled = resample_poly(sound.numpy(), ratio.numerator, ratio.denominator, axis=-1)
    return torch.from_numpy(resampled).to(sound.dtype)
