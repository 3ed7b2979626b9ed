"""All mutants, package after package."""

from tests.mutants.mutant import Mutant
from tests.mutants.packages import cli, data, evaluation, formats, inference, model, runtime, surgery, train, training

MUTANTS: tuple[Mutant, ...] = (
    *model.MUTANTS,
    *data.MUTANTS,
    *training.MUTANTS,
    *formats.MUTANTS,
    *inference.MUTANTS,
    *evaluation.MUTANTS,
    *train.MUTANTS,
    *surgery.MUTANTS,
    *cli.MUTANTS,
    *runtime.MUTANTS,
)
