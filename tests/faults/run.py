"""Runs the fault campaigns and prints their counts: python -m tests.faults.run [NAME ...] [--seed N] [--write].

A campaign is a module `tests/faults/NAME.py` with `cases(seed, folder)`, which yields an `Outcome` for each case and may
write into `folder`. `--write` puts each table into docs/reliability.md, between the marks of its name.
"""

import argparse
import importlib
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.outcome import table
from tests.root import ROOT

CAMPAIGNS = ("kills", "hosts", "damage", "writes", "numbers", "hostile")
PAGE = ROOT / "docs" / "reliability.md"


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every promise was kept, 1 if not."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of them: {', '.join(CAMPAIGNS)}")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--write", action="store_true", help="put the tables into docs/reliability.md")
    arguments = p.parse_args(argv)
    if unknown := set(arguments.names) - set(CAMPAIGNS):
        p.error(f"no campaign {', '.join(sorted(unknown))}; there are {', '.join(CAMPAIGNS)}")
    broken = 0
    for name in arguments.names or CAMPAIGNS:
        campaign = importlib.import_module(f"tests.faults.{name}")
        started, outcomes = time.monotonic(), []
        with tempfile.TemporaryDirectory(prefix=f"faults-{name}-") as folder:
            for outcome in campaign.cases(arguments.seed, Path(folder)):
                outcomes.append(outcome)
                if not outcome.held:
                    broken += 1
                    print(f"BROKEN: {outcome.what}: {outcome.ended}: {outcome.case}", file=sys.stderr, flush=True)
        counts = table(outcomes)
        seconds = time.monotonic() - started
        print(f"{name}, seed {arguments.seed}: {len(outcomes):,} cases in {seconds:,.0f} s\n\n{counts}\n", flush=True)
        if arguments.write:
            PAGE.write_text(with_table(PAGE.read_text("utf-8"), name, counts), "utf-8")
    return 1 if broken else 0


def with_table(page: str, name: str, counts: str) -> str:
    """The page with this table between the marks `<!-- faults: NAME -->` and `<!-- end -->`."""
    marks = re.compile(rf"(<!-- faults: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    found, number = marks.subn(lambda mark: f"{mark[1]}{counts}\n{mark[2]}", page)
    if number != 1:
        raise ValueError(f"{PAGE.name} has {number} places <!-- faults: {name} -->; wanted one")
    return found


if __name__ == "__main__":
    sys.exit(main())
