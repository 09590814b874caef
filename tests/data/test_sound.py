"""Recordings from folders, lists and arrays; broken, cut and empty ones are found without decoding them all."""

import io
import sys

import numpy as np
import pytest
import soundfile
import torch

from regard.data.sound import Samples, SoundFile, read_sounds, read_spoken
from regard.errors import Missing
from regard.tasks.classify import detect_modality

RATE = 8000
TONE = (np.sin(np.arange(2000) * 0.3) * 0.5).astype(np.float32)


@pytest.fixture
def record(tmp_path):
    def make(name, samples=TONE):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples, RATE)
        return path

    return make


def test_a_folder_for_each_class(record, tmp_path):
    record("set/是/1.wav")
    record("set/no/1.flac", TONE / 2)
    reading = read_sounds(tmp_path / "set").strict()
    assert [one.label for one in reading.examples] == ["no", "是"]
    samples, rate = reading.examples[0].sound.load()
    assert rate == RATE and np.allclose(samples.numpy(), TONE / 2, atol=1e-4)
    assert reading.examples[0].sound.load(4000)[0].shape == (1000,)


def cut(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("name", ["cut.wav", "cut.flac", "cut.mp3"])
def test_a_cut_recording_is_a_fault(record, tmp_path, only_fault, name):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 40_000)
    record("set/a/good.wav")
    bad = record(f"set/a/{name}", noise)
    cut(bad)
    reading = read_sounds(tmp_path / "set")
    _, _, message = only_fault(reading, bad)
    assert message.startswith("is cut: ") and len(reading) == 1


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "ogg", "aiff"])
def test_whole_recordings_of_every_form(record, tmp_path, ending):
    record(f"set/a/1.{ending}", TONE)
    sound = read_sounds(tmp_path / "set").strict().examples[0].sound
    assert abs(len(sound.load()[0]) - len(TONE)) <= 2


@pytest.mark.parametrize(
    "samples, content, message",
    [
        (TONE[:0], None, "is a sound of no length."),
        (None, b"no sound at all", "cannot be read as sound"),
        (None, b"", "cannot be read as sound"),
    ],
)
def test_what_is_wrong_with_a_recording(record, write, tmp_path, only_fault, samples, content, message):
    record("set/a/good.wav")
    bad = record("set/a/bad.wav", samples) if content is None else write("set/a/bad.wav", content)
    reading = read_sounds(tmp_path / "set")
    assert message in only_fault(reading, bad)[2] and len(reading) == 1


def test_a_list_of_recordings(record, write):
    record("wavs/1.wav")
    record("wavs/2.wav", TONE[:0])
    path = write("a.csv", "audio,class,split\nwavs/1.wav,one,test\nwavs/2.wav,two,train\nwavs/3.wav,three,train\n")
    reading = read_sounds(path)
    assert [(one.label, one.split) for one in reading.examples] == [("one", "test")]
    assert [(fault.line, fault.column) for fault in reading.faults] == [(3, 1), (4, 1)]
    assert "2.wav is a sound of no length" in reading.faults[0].message
    assert "'wavs/3.wav' is not there" in reading.faults[1].message


@pytest.fixture
def arrays(tmp_path):
    good = {
        "audio": (np.arange(100) * 300).astype(np.int16),
        "offsets": np.array([0, 40, 100]),
        "rate": np.array(RATE),
        "digit": np.array([7, 3], dtype=np.uint8),
        "speaker": np.array([1, 0]),
        "speakers": np.array(["george", "乔"]),
        "is_test": np.array([True, False]),
    }

    def save(**changes):
        np.savez(tmp_path / "a.npz", **{name: one for name, one in (good | changes).items() if one is not None})
        return tmp_path / "a.npz"

    return save


def test_recordings_of_arrays(arrays):
    path = arrays()
    reading = read_sounds(path, label="digit").strict()
    assert [(one.label, one.split) for one in reading.examples] == [("7", "test"), ("3", "train")]
    samples, rate = reading.examples[1].sound.load()
    assert rate == RATE and torch.equal(samples, torch.arange(40, 100) * 300 / 32768)
    assert [one.label for one in read_sounds(path, label="speaker").examples] == ["乔", "george"]


@pytest.mark.parametrize(
    "changes, label, message",
    [
        ({}, None, "which array is the label?"),
        ({}, "age", "has no array 'age' for the label. There are audio"),
        ({"rate": None}, "digit", "has no array 'rate' for the samples a second."),
        ({"rate": np.array(0)}, "digit", "wanted one number of samples a second"),
        ({"offsets": np.array([0, 100, 100])}, "digit", "recording 1 has no length (offsets 100 and 100)."),
        ({"audio": np.zeros((10, 10))}, "digit", "wanted int16 or float32 [samples]."),
        ({"speaker": np.array([0, 5])}, "speaker", "the array 'speaker' has no class's name at 1."),
        ({"is_test": None, "split": np.array(["train", "x"])}, "digit", "has 'x' at 1; wanted train, dev or test."),
    ],
)
def test_what_is_wrong_with_arrays(arrays, only_fault, changes, label, message):
    path = arrays(**changes)
    assert message in only_fault(read_sounds(path, label=label), path)[2]


def test_float_samples_stay_as_they_are():
    values = torch.tensor([0.25, -0.5])
    assert torch.equal(Samples(values, RATE).load()[0], values)


def test_without_soundfile(monkeypatch, record, tmp_path):
    record("set/a/1.wav")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(Missing, match="regard\\[train\\]"):
        read_sounds(tmp_path / "set")


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv", 'path,transcript\n1.wav,"YES, NO"\n'),
        ("a.tsv", "1.wav\tYES, NO\n"),
        ("a.jsonl", '{"audio": "1.wav", "text": "YES, NO", "duration": 2}\n'),
    ],
)
def test_lists_with_transcripts(record, write, name, content):
    wav = record("1.wav")
    (one,) = read_spoken(write(name, content)).strict().examples
    assert one.text == "YES, NO" and one.sound == SoundFile(wav) and one.frames is None


def test_a_folder_with_texts_beside(record, write, tmp_path):
    for name in ("1", "2", "3", "4"):
        record(f"set/{name}.wav")
    write("set/1.txt", "你好\n世界\n")
    write("set/x.trans.txt", "2 SECOND ONE\n3\n")
    reading = read_spoken(tmp_path / "set")
    assert [one.text for one in reading.examples] == ["你好 世界", "SECOND ONE"]
    found = {(fault.file.rsplit("/", 1)[1], fault.line, fault.column): fault.message for fault in reading.faults}
    assert set(found) == {("x.trans.txt", 2, 2), ("3.wav", None, None), ("4.wav", None, None)}
    assert found["x.trans.txt", 2, 2] == "the recording '3' has no text."
    assert "neither 4.txt nor a line in a .trans.txt" in found["4.wav", None, None]


def test_a_folder_without_recordings(tmp_path, only_fault):
    assert "has no recordings" in only_fault(read_spoken(tmp_path), tmp_path)[2]


def test_frames_of_arrays(tmp_path, only_fault):
    frames = np.random.default_rng(0).normal(size=(9, 13)).astype(np.float16)
    path = tmp_path / "a.npz"
    np.savez(path, mfcc=frames, offsets=np.array([0, 4, 4, 9]), text=np.array(["YES", "NO", "好"]))
    reading = read_spoken(path)
    assert [one.text for one in reading.examples] == ["YES", "好"]
    assert torch.equal(reading.examples[1].frames, torch.from_numpy(frames[4:]))
    assert reading.examples[1].sound is None
    assert only_fault(reading, path)[2] == "recording 1 has no length (offsets 4 and 4)."


def test_samples_of_arrays_with_texts(arrays):
    reading = read_spoken(arrays(text=np.array(["a", "b"]))).strict()
    assert reading.examples[0].sound.load()[0].shape == (40,)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"text": np.array(["a", ""])}, "the array 'text' is empty at 1."),
        ({"text": np.array(["a", "b"]), "mfcc": np.zeros(5)}, "wanted floats [frames, bins]."),
    ],
)
def test_what_is_wrong_with_spoken_arrays(arrays, only_fault, changes, message):
    assert message in only_fault(read_spoken(arrays(**changes)))[2]


def test_recordings_with_what_is_no_number(tmp_path):
    frames = np.ones((6, 2), "float32")
    frames[1] = np.nan
    np.savez(tmp_path / "a.npz", mfcc=frames, offsets=[0, 3, 6], text=["a", "b"])
    reading = read_spoken(tmp_path / "a.npz")
    assert len(reading.examples) == 1 and "recording 0" in str(reading.faults[0])


def test_recordings_in_the_rows_of_a_data_set(tmp_path, only_fault):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    samples, buffer = np.linspace(-0.5, 0.5, 800, dtype=np.float32), io.BytesIO()
    soundfile.write(buffer, samples, 8000, format="WAV", subtype="FLOAT")
    cells = [{"bytes": data, "path": None} for data in (buffer.getvalue(), buffer.getvalue(), b"RIFF no sound")]
    path = tmp_path / "data.parquet"
    parquet.write_table(arrow.table({"audio": cells, "label": ["x", "y", "y"], "text": ["a", "b", "c"]}), path)
    reading = read_sounds(path)
    assert [example.label for example in reading.examples] == ["x", "y"] and detect_modality(path) == "sound"
    values, rate = reading.examples[0].sound.load()
    assert rate == 8000 and values.tolist() == pytest.approx(samples.tolist())
    assert "row 3 cannot be read as sound" in only_fault(reading)[2]
    assert [example.text for example in read_spoken(path).examples] == ["a", "b"]
