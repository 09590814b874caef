"""Little files that the tests of reading write."""

import gzip

import pytest


@pytest.fixture
def write(tmp_path):
    """write(name, text or bytes) → path; text is UTF-8, and packed where the name ends in .gz."""

    def make(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return make


@pytest.fixture
def only_fault():
    """The single fault of a reading as (line, column, message), in the file given or any."""

    def one(reading, path=None):
        assert len(reading.faults) == 1, reading.faults
        fault = reading.faults[0]
        assert path is None or fault.file == str(path)
        assert str(fault).startswith(fault.file)
        return fault.line, fault.column, fault.message

    return one
