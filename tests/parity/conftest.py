"""Skips this folder's files by name if the references are not installed; the fixture `silent`."""

import logging
from pathlib import Path

import pytest

from tests.references import LACKS, MISSING


class WithoutReferences(pytest.Module):
    """A file that pytest does not import, since its imports would fail."""

    def collect(self):
        pytest.skip(f"{self.path.name}: {LACKS}", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return WithoutReferences.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture
def silent(caplog, capfd):
    """After the test: nothing was logged as a warning or printed (Python's own warnings are errors anyway)."""
    from transformers.utils import logging as theirs

    theirs.disable_progress_bar()
    theirs.set_verbosity_warning()
    theirs.enable_propagation()
    with caplog.at_level(logging.WARNING):
        yield
    theirs.disable_propagation()
    logged = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
    assert [record.getMessage() for record in logged if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")
