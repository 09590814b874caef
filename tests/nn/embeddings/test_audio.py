"""Spectrograms against scipy's formulas and Whisper's own; frames against loops; sound files that the tests write."""

import math
import struct
import sys

import numpy as np
import pytest
import scipy.fft
import scipy.signal
import soundfile
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from regard.errors import BadInput, Missing
from regard.nn.embeddings.audio import Mel, SoundConvolutions, SoundFrames, log_mel, mel_filters, mfcc, read_sound

RATE = 16000


@pytest.fixture
def sound(generator):
    """Half a second: a rising tone, noise, and a silence at the end."""
    t = torch.arange(RATE // 2, dtype=torch.float64) / RATE
    tone = torch.sin(2 * math.pi * (200 + 1500 * t) * t) * 0.4
    noisy = tone + 0.01 * torch.randn(len(t), generator=generator, dtype=torch.float64)
    return torch.where(t < 0.4, noisy, 0.0)


def test_log_mel_equals_whisper(sound):
    extractor = WhisperFeatureExtractor(chunk_length=1)
    wanted = extractor._np_extract_fbank_features(sound.numpy()[None], "cpu")[0].T
    mine = log_mel(sound, RATE)
    assert mine.shape == (50, 80)
    assert torch.allclose(mine, torch.from_numpy(wanted).double(), atol=1e-5)
    assert torch.allclose(log_mel(sound.float(), RATE), mine.float(), atol=1e-3)


@pytest.mark.parametrize(
    "mel",
    [
        Mel(bins=23, fft=512, window=400, scale="htk", log="natural", low=20, high=7600),
        Mel(bins=40, fft=256, hop=100, scale="slaney", log="log10", power=1.0),
        Mel(bins=10, fft=129, hop=64, log="decibel", floor=1e-5),
    ],
)
def test_log_mel_is_the_formula_through_scipy(mel, sound):
    window = mel.window or mel.fft
    padded = np.zeros(mel.fft)
    first = (mel.fft - window) // 2
    padded[first : first + window] = scipy.signal.get_window("hann", window)
    mirrored = np.pad(sound.numpy(), mel.fft // 2, mode="reflect")
    frames = np.stack([mirrored[t * mel.hop :][: mel.fft] for t in range(len(sound) // mel.hop)])
    power = np.abs(scipy.fft.rfft(frames * padded)) ** mel.power
    filters = mel_filter_bank(
        mel.fft // 2 + 1,
        mel.bins,
        mel.low,
        mel.high or RATE / 2,
        RATE,
        norm="slaney" if mel.scale == "slaney" else None,
        mel_scale=mel.scale,
    )
    if mel.fft % 2:  # theirs spreads the frequencies up to half the rate, which an odd transform does not reach
        filters = mel_filters(RATE, mel).numpy()
    energy = np.maximum(power @ filters, mel.floor)
    wanted = {"natural": np.log, "log10": np.log10, "decibel": lambda x: 10 * np.log10(x)}[mel.log](energy)
    assert torch.allclose(log_mel(sound, RATE, mel), torch.from_numpy(wanted), atol=1e-8)


def test_spectrum_agrees_with_scipys_stft(sound):
    mel = Mel(bins=12, fft=200, hop=50, log="log10", power=1.0)
    transform = scipy.signal.ShortTimeFFT(scipy.signal.get_window("hann", 200), 50, RATE)
    inner = slice(4, 100)  # away from the ends, which are padded differently
    waves = np.abs(transform.stft(sound.numpy()))[:, -transform.p_min :][:, inner].T
    wanted = np.log10(np.maximum(waves @ mel_filters(RATE, mel).numpy(), mel.floor))
    assert torch.allclose(log_mel(sound, RATE, mel)[inner], torch.from_numpy(wanted), atol=1e-8)


@pytest.mark.parametrize("scale", ["slaney", "htk"])
def test_filters_equal_transformers(scale):
    mel = Mel(bins=17, fft=320, low=50.0, high=6000.0, scale=scale)
    norm = "slaney" if scale == "slaney" else None
    wanted = mel_filter_bank(161, 17, 50.0, 6000.0, RATE, norm=norm, mel_scale=scale)
    assert torch.allclose(mel_filters(RATE, mel), torch.from_numpy(wanted), atol=1e-12)


def test_mfcc_is_scipys_cosine_transform(sound):
    mel = Mel(bins=26, fft=512, window=400, scale="htk", log="natural")
    wanted = scipy.fft.dct(log_mel(sound, RATE, mel).numpy(), type=2, norm="ortho")[:, :13]
    assert torch.allclose(mfcc(sound, RATE, mel), torch.from_numpy(wanted), atol=1e-9)
    assert torch.equal(mfcc(sound, RATE), mfcc(sound, RATE, mel))


def test_batches_are_rows_and_short_sounds_are_padded(sound):
    both = torch.stack([sound, sound.flip(0) * 0.1])
    assert torch.allclose(log_mel(both, RATE)[1], log_mel(both[1], RATE), atol=1e-10)
    short = log_mel(sound[:30], RATE)
    assert short.shape == (1, 80) and short.isfinite().all()
    longer = torch.cat([sound[:30], torch.zeros(370, dtype=torch.float64)])
    assert torch.equal(short[0], log_mel(longer[:400], RATE, Mel(hop=400))[0])


def test_a_tone_is_in_its_bin():
    tone = torch.sin(2 * math.pi * 1000 * torch.arange(RATE) / RATE)
    mel = Mel(log="log10")
    peak = mel_filters(RATE, mel)[1000 * mel.fft // RATE].argmax()
    assert (log_mel(tone, RATE, mel)[5:-5].argmax(-1) == peak).all()


@pytest.mark.parametrize(("stack", "stride"), [(4, None), (3, 2), (1, 1), (2, 5)])
def test_stacked_frames_are_the_formula(stack, stride, generator):
    layer = SoundFrames(3, 5, stack, stride)
    x = torch.randn(2, 11, 3, generator=generator, requires_grad=True)
    step = stride or stack
    far = torch.cat([x, torch.zeros(2, stack, 3)], 1)
    wanted = torch.stack(
        [layer.projection(far[:, t : t + stack].flatten(1)) for t in range(0, 11, step)],
        dim=1,
    )
    y, lengths = layer(x)
    assert lengths is None and torch.allclose(y, wanted, atol=1e-6)
    a, b = (torch.autograd.grad(out.square().sum(), x)[0] for out in (y, wanted))
    assert torch.allclose(a, b, atol=1e-5)


def test_convolutions_equal_whisper(generator):
    config = WhisperConfig(num_mel_bins=7, d_model=8, encoder_layers=0, encoder_attention_heads=2)
    theirs, mine = WhisperEncoder(config).eval(), SoundConvolutions(7, 8)
    mine.conv1.load_state_dict(theirs.conv1.state_dict())
    mine.conv2.load_state_dict(theirs.conv2.state_dict())
    x = torch.randn(2, 3000, 7, generator=generator)
    wanted = theirs(x.mT).last_hidden_state
    added = mine(x)[0] + theirs.embed_positions.weight
    assert torch.allclose(theirs.layer_norm(added), wanted, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: SoundFrames(3, 4, 4, 2), lambda: SoundConvolutions(3, 4)])
def test_padding_never_matters(make, generator):
    layer = make()
    x = torch.randn(3, 9, 3, generator=generator)
    lengths = torch.tensor([9, 5, 1])
    y, fewer = layer(x, lengths)
    assert fewer.tolist() == [5, 3, 1]
    noisy = x.clone()
    noisy[1, 5:], noisy[2, 1:] = 50.0, torch.nan
    for row, length in enumerate(fewer.tolist()):
        assert torch.equal(layer(noisy, lengths)[0][row, :length], y[row, :length])
        alone = layer(x[row : row + 1, : lengths[row]])[0][0]
        assert torch.allclose(alone, y[row, :length], atol=1e-6) and len(alone) == length


@pytest.mark.parametrize(("name", "close"), [("a.wav", 1e-4), ("a.flac", 1e-4), ("a.ogg", 0.2)])
def test_files_give_back_what_was_written(name, close, sound, tmp_path):
    soundfile.write(tmp_path / name, sound.numpy(), RATE)
    samples, rate = read_sound(tmp_path / name)
    assert rate == RATE and samples.dtype == torch.float32 and samples.shape == sound.shape
    assert torch.allclose(samples, sound.float(), atol=close)


def test_channels_are_averaged(sound, tmp_path):
    both = np.stack([sound.numpy(), 0.5 * sound.flip(0).numpy()], 1)
    soundfile.write(tmp_path / "stereo.wav", both, RATE, subtype="FLOAT")
    assert torch.allclose(read_sound(tmp_path / "stereo.wav")[0], torch.from_numpy(both.mean(1)).float(), atol=1e-6)


def test_resampling_keeps_a_tone(tmp_path):
    tone = np.sin(2 * np.pi * 440 * np.arange(22050) / 22050)
    soundfile.write(tmp_path / "tone.wav", tone, 22050, subtype="FLOAT")
    samples, rate = read_sound(tmp_path / "tone.wav", RATE)
    wanted = torch.sin(2 * math.pi * 440 * torch.arange(RATE) / RATE)
    assert rate == RATE and samples.shape == (RATE,)
    assert torch.allclose(samples[500:-500], wanted[500:-500], atol=1e-2)
    assert torch.equal(read_sound(tmp_path / "tone.wav", 22050)[0], read_sound(tmp_path / "tone.wav")[0])


def test_bad_files_are_refused_by_name(sound, tmp_path):
    whole, cut, empty, text, flac = (tmp_path / n for n in ("whole.wav", "cut.wav", "empty.wav", "no.wav", "cut.flac"))
    soundfile.write(whole, sound.numpy(), RATE)
    cut.write_bytes(whole.read_bytes()[:-1000])
    soundfile.write(empty, np.zeros(0), RATE)
    text.write_text("this is no sound")
    soundfile.write(flac, sound.numpy(), RATE)
    flac.write_bytes(flac.read_bytes()[:2000])
    for path, says in (
        (cut, "is cut: 15000 of 16000 bytes"),
        (empty, "has no samples"),
        (text, "cannot be read as sound"),
        (flac, "is cut|cannot be read"),
        (tmp_path / "none.wav", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(BadInput, match=says) as error:
            read_sound(path)
        assert str(path) in str(error.value)


def test_a_wav_from_a_pipe_says_no_size_and_is_read(tmp_path):
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 0xFFFFFFFF, b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    data = struct.pack("<4sI", b"data", 0xFFFFFFFF) + np.arange(-100, 100, dtype="<i2").tobytes()
    (tmp_path / "pipe.wav").write_bytes(head + data)
    assert read_sound(tmp_path / "pipe.wav")[0].shape == (200,)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(Missing, match=r"regard\[train\]"):
        read_sound(tmp_path / "a.wav")


def test_wrong_calls_are_refused(sound):
    with pytest.raises(BadInput, match="int16"):
        log_mel(sound.short(), RATE)
    with pytest.raises(BadInput, match=r"\[0\]"):
        log_mel(sound[:0], RATE)
    with pytest.raises(BadInput, match="do not fit a rate of 16000"):
        log_mel(sound, RATE, Mel(high=9000.0))
    with pytest.raises(BadInput, match="scale is 'bark'"):
        Mel(scale="bark")
    with pytest.raises(BadInput, match="window is 500"):
        Mel(window=500)
    with pytest.raises(BadInput, match="count is 27"):
        mfcc(sound, RATE, count=27)
    with pytest.raises(BadInput, match=r"\[1, 4, 3\]"):
        SoundFrames(5, 4)(torch.zeros(1, 4, 3))
