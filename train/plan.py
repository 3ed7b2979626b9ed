"""What a run would take on machines that you do not have: memory, exchanges, a range for the time, and the cost.

It compiles the real training step with the TPU's own compiler, which needs no TPU.
"""

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bert_jax.errors import UserError
from train.planning.devices import make_ready
from train.planning.machines import take_topologies
from train.pretraining.recipe import PretrainConfig
from train.run.config import take_values
from train.run.ending.stopping import EXIT_DONE, keeps_nothing, run_program
from train.run.launch import parse

USAGE = """
Says what a pretraining run would take on machines that you do not have. Nothing is trained or allocated.

    python -m train.plan CONFIG.py --topology v5e:4x4 [--topology ...] [FIELD=VALUE ...] [--price 1.20] [--json]

    python -m train.plan configs/bert_base.py --topology v5e:1x1 --topology v5e:4x4
    python -m train.plan configs/bert_large.py --topology v5e:16x16 mesh.zero=8 --price 1.20

Arguments:
    --topology KIND:SHAPE  the machine, once or more: v3, v5e, v6e with two axes (v5e:16x16); v4, v5p, tpu7x with three
                           (v4:2x2x4); 2xv5e:16x16 two slices; a100, h100, h200 (h100:8); cpu:8 virtual CPU devices
    FIELD=VALUE            any field of the config, as for python -m train.pretrain
    --price P              the price of a chip for an hour, in any currency: also prints the cost of the run
    --fit                  find the rows at a time, the layout and the remat that fit and are fastest; compiles several
                           settings, which takes minutes each; without --price and --picture
    --picture FILE.png     draw memory and time by part;  --overwrite  replace the file
    --json                 print the figures as one JSON object on stdout, and the tables on stderr

TPUs need the TPU's compiler (pip install -e '.[tpu]'), which runs on any Linux machine: minutes for BERT-base on a
core. A GPU's figures are an estimate. Exit codes: 0 done; 2 a mistake in the input; 130 Ctrl-C; 1 a bug.
"""


@keeps_nothing
def main(argv: Sequence[str]) -> int:
    """Prints the plan; returns the exit code, raises UserError for the user's mistakes."""
    topologies, words = take_topologies(argv)
    prices, words = take_values(words, "--price")
    pictures, words = take_values(words, "--picture")
    fit, overwrite = "--fit" in words, "--overwrite" in words
    launch = parse([word for word in words if word not in ("--fit", "--overwrite")], USAGE, PretrainConfig)
    if launch.dry_run:
        raise UserError("--dry-run: a plan never trains; leave it out")
    if fit and (prices or pictures):
        raise UserError(
            "--fit: compares settings of each phase and has no cost and no picture; leave --price and --picture out"
        )
    if not topologies:
        raise UserError("--topology: not given; say --topology v5e:4x4, or several of them")
    price, picture = _price(prices), _picture(pictures, overwrite)
    make_ready(topologies)

    from train.planning.fit import fastest
    from train.planning.picture import draw_plans
    from train.planning.report import print_fit
    from train.planning.run_plan import plans_on, teller
    from train.pretraining.fitted_model import open_init, with_model_for
    from train.pretraining.mixture import open_data

    config = launch.config
    if config.data is None:
        config = dataclasses.replace(config, data="random")
    data = open_data(config)
    config = with_model_for(config, data, launch.given, open_init(config))
    out = Console(stderr=launch.as_json, highlight=False)
    if fit:
        found = []
        for topology in topologies:
            for phase in config.phases:
                tried = fastest(config, data, topology, phase, teller(topology))
                print_fit(topology, phase, tried, out)
                found.append({"topology": topology.name, **phase._asdict(), "tried": tried})
    else:
        found = plans_on(topologies, config, data, price, out)
        if picture is not None:
            draw_plans(found, picture)
    if launch.as_json:
        print(json.dumps({"fits" if fit else "plans": found}))
    return EXIT_DONE


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


def _picture(texts: Sequence[str], overwrite: bool) -> Path | None:
    if not texts:
        return None
    path = Path(texts[-1])
    if path.suffix != ".png" or not path.absolute().parent.is_dir():
        raise UserError(f"--picture: found {texts[-1]}; expected a .png in a folder that exists")
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"{path}: exists; say --overwrite to replace it, or another --picture")
    return path


if __name__ == "__main__":
    run_program(main)
