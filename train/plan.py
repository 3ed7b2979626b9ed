"""What a run would take on machines that you do not have: memory, exchanges, a range for the time, and the cost.

It compiles the real training step with the TPU's own compiler, which needs no TPU.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.runtime.compilation_cache import keep_compiled_programs
from train.planning.devices import make_ready
from train.planning.machines import Topology, read_topology
from train.pretraining.recipe import PretrainConfig
from train.run.launch import parse
from train.run.stopping import EXIT_DONE, run_program

USAGE = """
Says what a pretraining run would take on machines that you do not have. Nothing is trained or allocated.

    python -m train.plan CONFIG.py --topology v5e:4x4 [--topology ...] [FIELD=VALUE ...] [--price 1.20] [--json]

    python -m train.plan configs/bert_base.py --topology v5e:1x1 --topology v5e:4x4
    python -m train.plan configs/bert_large.py --topology v5e:16x16 mesh.fsdp=4 --price 1.20

Words:
    --topology KIND:SHAPE  the machine, once or more: v3, v5e, v6e with two axes (v5e:16x16); v4, v5p, tpu7x with three
                           (v4:2x2x4); 2xv5e:16x16 two slices; a100, h100, h200 (h100:8); cpu:8 virtual CPU devices
    FIELD=VALUE            any field of the config, as for python -m train.pretrain
    --price P              of a chip for an hour: also prints the cost of the run
    --fit                  find the rows at a time, the layout and the remat that fit and are fastest: compiles several
    --picture FILE.png     draw memory and time by part
    --json                 print the figures as one JSON object on stdout, and the tables on stderr

TPUs need the TPU's compiler (pip install -e '.[tpu]'), which runs on any Linux machine: minutes for BERT-base on a
core. A GPU's figures are an estimate. Exit codes: 0 done; 2 a mistake in the input; 130 Ctrl-C; 1 a bug.
"""
_WITH_VALUES = ("--topology", "--price", "--picture")


def main(argv: Sequence[str]) -> int:
    """Prints the plan; returns the exit code, raises UserError for the user's mistakes."""
    options, fit, words = _split(argv)
    launch = parse(words, USAGE, PretrainConfig)
    if launch.dry_run:
        raise UserError("--dry-run: a plan never trains; leave it out")
    if not options["--topology"]:
        raise UserError("--topology: not given; say --topology v5e:4x4, or several of them")
    topologies = [read_topology(text) for text in options["--topology"]]
    price = _price(options["--price"])
    picture = _picture(options["--picture"])
    make_ready(topologies)
    keep_compiled_programs()

    from train.planning.fit import fastest
    from train.planning.picture import draw_plans
    from train.planning.report import print_fit, print_plans
    from train.planning.run_plan import plan_run
    from train.pretrain import open_init
    from train.pretraining.mixture import open_data
    from train.pretraining.start import with_model_for

    config = launch.config
    if config.data is None:
        config = dataclasses.replace(config, data="random")
    data = open_data(config)
    config = with_model_for(config, data, launch.given, open_init(config))
    out, found = Console(stderr=launch.as_json, highlight=False), {}
    if fit:
        found["fits"] = []
        for topology in topologies:
            for phase in config.phases:
                tried = fastest(config, data, topology, phase, _tell(topology))
                print_fit(topology, phase, tried, out)
                found["fits"].append({"topology": topology.name, **phase._asdict(), "tried": tried})
    else:
        found["plans"] = []
        for topology in topologies:
            _tell(topology)("compiling")
            found["plans"].append(plan_run(config, data, topology, price))
        print_plans(found["plans"], out)
        if picture is not None:
            draw_plans(found["plans"], picture)
    if launch.as_json:
        print(json.dumps(found))
    return EXIT_DONE


def _tell(topology: Topology) -> Callable[[str], None]:
    return lambda line: print(f"{topology.name}: {line}", file=sys.stderr, flush=True)


def _split(argv: Sequence[str]) -> tuple[dict[str, list[str]], bool, list[str]]:
    """The values of this program's options, whether --fit is among the words, and the other words."""
    found: dict[str, list[str]] = {name: [] for name in _WITH_VALUES}
    words, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in found:
            words.append(word)
            continue
        if not equals:
            if not rest:
                raise UserError(f"{name}: expected a value after it")
            value = rest.pop(0)
        found[name].append(value)
    return found, "--fit" in words, [word for word in words if word != "--fit"]


def _price(texts: Sequence[str]) -> float | None:
    if not texts:
        return None
    try:
        price = float(texts[-1])
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise UserError(f"--price: found {texts[-1]!r}; expected a number such as 1.20, for a chip and an hour")
    return price


def _picture(texts: Sequence[str]) -> Path | None:
    if not texts:
        return None
    path = Path(texts[-1])
    if path.suffix != ".png" or not path.absolute().parent.is_dir():
        raise UserError(f"--picture: found {texts[-1]}; expected a .png in a folder that exists")
    return path


if __name__ == "__main__":
    run_program(main)
