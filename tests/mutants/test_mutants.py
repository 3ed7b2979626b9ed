"""The table of mutants fits the code: what `make mutants` changes is there, and so are the tests that must notice."""

from collections import Counter

import pytest

from tests.mutants.mutant import PACKAGES, Mutant
from tests.mutants.run import try_mutant
from tests.mutants.table import MUTANTS
from tests.root import ROOT


def test_every_row_finds_its_code_and_its_tests():
    assert [problem for mutant in MUTANTS for problem in mutant.problems(ROOT)] == []


def test_there_are_enough_mutants_and_every_package_has_some():
    assert len(MUTANTS) >= 80
    assert set(Counter(mutant.package for mutant in MUTANTS)) == set(PACKAGES)
    assert [row for row, count in Counter((m.file, m.old, m.new) for m in MUTANTS).items() if count > 1] == []


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (Mutant("a.py", "x = 2", "x = 3", "", ("test_a.py::test_x",)), "stands in it 0 times"),
        (Mutant("a.py", "y", "z", "", ("test_a.py::test_x",)), "stands in it 2 times"),
        (Mutant("b.py", "x", "z", "", ("test_a.py::test_x",)), "no such file"),
        (Mutant("a.py", "x = 1", "x = 1", "", ("test_a.py::test_x",)), "changed to itself"),
        (Mutant("a.py", "x = 1", "x = 3", "", ("test_a.py::test_y",)), "has no test test_y"),
        (Mutant("a.py", "x = 1", "x = 3", "", ("test_b.py",)), "no such file of tests"),
        (Mutant("a.py", "x = 1", "x = 3", "", ()), "names no test"),
    ],
)
def test_a_stale_row_is_an_error(tmp_path, row, says):
    (tmp_path / "a.py").write_text("x = 1\ny = y\n")
    (tmp_path / "test_a.py").write_text("def test_x(): ...\n")
    (problem,) = row.problems(tmp_path)
    assert says in problem


def test_a_row_that_fits_has_no_problem(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "test_a.py").write_text("def test_x(): ...\n")
    row = Mutant("a.py", "x = 1", "x = 2", "", ("test_a.py::test_x[3]", "test_a.py"))
    assert row.problems(tmp_path) == []
    assert row.applied("x = 1\n") == "x = 2\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "result", "by"),
    [
        ("x = 2", "noticed", "test_a.py::test_x"),
        ("x = 1 + 0", "survived", "1 passed"),
        ("while True: pass", "hung", ""),
        ("x = (", "unfit", "test_a.py"),
        ("skip = True; x = 1", "unfit", "1 skipped"),
    ],
)
def test_what_became_of_a_mutant(tmp_path, new, result, by):
    (tmp_path / "a.py").write_text("x = 1\n")
    test = "import pytest\nimport a\n\n\ndef test_x():\n    if hasattr(a, 'skip'):\n        pytest.skip()\n"
    (tmp_path / "test_a.py").write_text(f"{test}    assert a.x == 1\n")
    found = try_mutant(
        Mutant("a.py", "x = 1", new, "", ("test_a.py::test_x",)), tmp_path, limit=3 if result == "hung" else 60
    )
    assert (found.result, by in found.by) == (result, True)
    assert (tmp_path / "a.py").read_text() == "x = 1\n"
