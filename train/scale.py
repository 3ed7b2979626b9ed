"""How a recipe's batch is split over 1 to 4,096 devices: rows of a device at a time, and parts of a step.

    python -m train.scale [CONFIG.py ...] [--devices 1,8,16,256,4096] [FIELD=VALUE ...]

It needs none of the devices. Without a config it takes every pretraining recipe in configs/. FIELD=VALUE changes the
config, as for train.pretrain: mesh.fsdp=4, tokens_per_device=16384. A cell such as "16 x 8" means that each device
computes 16 rows at a time, and that a step has 8 such parts. "at most 256" means that train.pretrain refuses this
number of devices, and that 256 is the nearest that fits; "-" that the mesh does not take this number at all.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from bert_jax.cli.arguments import Parser
from bert_jax.cli.program import in_own_words
from bert_jax.errors import UserError
from bert_jax.training.mesh import mesh_sizes
from train.pretraining.phases import devices_that_fit
from train.pretraining.recipe import PretrainConfig
from train.run.config import load_recipe, override
from train.run.ending.stopping import EXIT_DONE, keeps_nothing, run_program

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
DEVICES = (1, 8, 16, 256, 4096)


def recipes() -> list[Path]:
    """The pretraining recipes in configs/."""
    return sorted(path for path in CONFIGS.glob("*.py") if "-> PretrainConfig" in path.read_text(encoding="utf-8"))


def table_of(configs: dict[str, PretrainConfig], devices: Sequence[int]) -> list[str]:
    """The lines of a Markdown table: a row for each shape of batch of a recipe, a column for each number of devices.

    Raises UserError if none of the numbers can be taken for a recipe.
    """
    head = ["recipe", "rows x length", "tokens a batch", "tokens a device at a time", *(f"{n:,}" for n in devices)]
    lines = [head, ["---", "---", *["---:"] * (2 + len(devices))]]
    for name, config in configs.items():
        refused: list[UserError] = []
        shapes = dict.fromkeys((length, batch) for length, batch, *_ in config.phases_in_rows)
        for length, batch in shapes:
            most = "all" if config.tokens_per_device is None else f"{config.tokens_per_device:,}"
            cells = [_cell(config, length, batch, count, refused) for count in devices]
            lines.append([name, f"{batch:,} x {length}", f"{batch * length:,}", most, *cells])
        if len(refused) == len(shapes) * len(devices):
            raise refused[0]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(config: PretrainConfig, length: int, batch: int, devices: int, refused: list[UserError]) -> str:
    """`refused`: takes the error of a number of devices that cannot be had."""
    try:
        *rows, tensor = mesh_sizes(config.mesh, devices)
        pieces = math.prod(rows)
        if batch % pieces and (fits := devices_that_fit(batch, pieces, config.mesh)) is not None:
            return f"at most {fits * tensor:,}"
        parts = config.parts_of(length, batch, pieces)
    except UserError as error:
        refused.append(error)
        return "-"
    return f"{batch // pieces // parts:,} x {parts:,}"


@keeps_nothing
def main(argv: Sequence[str]) -> int:
    """Prints the table; returns the exit code, raises UserError for the user's mistakes."""
    parser = Parser(prog=in_own_words("python -m train.scale"), description=in_own_words(__doc__ or ""))
    parser.add_argument("words", nargs="*", metavar="CONFIG.py | FIELD=VALUE")
    numbers = "numbers of devices, with commas between (default: %(default)s)"
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help=numbers)
    given = parser.parse_intermixed_args(argv)
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", given.devices):
        raise UserError(f"--devices: found {given.devices!r}; expected whole numbers such as 8,256")
    devices = [int(count) for count in given.devices.split(",")]
    fields = dict(word.split("=", 1) for word in given.words if "=" in word)
    paths = [Path(word) for word in given.words if "=" not in word] or recipes()
    configs = {path.name: override(load_recipe(str(path), PretrainConfig), fields) for path in paths}
    print("\n".join(table_of(configs, devices)))
    return EXIT_DONE


if __name__ == "__main__":
    run_program(main)
