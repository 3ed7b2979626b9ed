"""Steps compiled for sixteen TPU v5e chips: what they exchange, and that no chip has the rows of others.

The width is that of BERT-base, with two layers. Bytes follow from the parameters' shapes and the partition table.
"""

import collections
import dataclasses
import re
from importlib.util import find_spec

import jax
import pytest

from bert_jax.config import BertConfig
from bert_jax.training.mesh import PIECES, MeshConfig
from bert_jax.training.sharding import axes_of
from train.planning.devices import make_ready
from train.planning.machines import read_topology
from train.planning.planner import steps_on
from train.planning.program import Collective, read_program
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import RandomData
from train.pretraining.steps import Steps

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.optimized,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU's compiler (libtpu) is not installed"),
]
V5E = read_topology("v5e:4x4")
ROWS, LENGTH, PREDICTIONS = 1024, 128, 20
MODEL = BertConfig.preset("base-uncased", dtype="bfloat16", num_hidden_layers=2)


@dataclasses.dataclass(frozen=True)
class Compiled:
    layout: MeshConfig
    parts: int
    steps: Steps
    hlo: str

    @property
    def collectives(self) -> list[Collective]:
        return read_program(self.hlo, V5E.chips).collectives

    def bytes_of(self, *kinds: str, group: int) -> int:
        return sum(one.times * one.size for one in self.collectives if one.kind in kinds and one.group == group)


LAYOUTS = {
    "data": (MeshConfig(), 1),
    "fsdp": (MeshConfig(fsdp=4), 1),
    "zero": (MeshConfig(zero=8), 1),
    "accumulation": (MeshConfig(zero=8), 5),  # the rows of this batch are no other size in the program
}


@pytest.fixture(scope="module", params=LAYOUTS)
def compiled(request) -> Compiled:
    make_ready([V5E])
    mesh, parts = LAYOUTS[request.param]
    config = PretrainConfig(model=MODEL, phases=(Phase(LENGTH, ROWS * parts, 1_000_000),), mesh=mesh)
    steps = steps_on(config, RandomData(MODEL.vocab_size, "nsp"), V5E)
    text = steps.compile(config.phases[0], parts).as_text()
    return Compiled(mesh, parts, steps, text)


def matrices(steps: Steps, *, whole: bool) -> int:
    """The number of elements of the parameters of a kind: those that every device has whole, or those in pieces."""
    found = collections.Counter()
    for leaf in jax.tree.leaves(steps.state.params):
        axes = {axis for names in leaf.sharding.spec for axis in axes_of(names)}
        found[not axes & set(PIECES)] += leaf.size
    return found[whole]


def test_the_exchanges_are_the_gradients_and_pieces_once(compiled: Compiled):
    whole, pieces = (4 * matrices(compiled.steps, whole=which) for which in (True, False))
    split = max(compiled.layout.fsdp, compiled.layout.zero)
    if split == 1:
        assert compiled.bytes_of("all-reduce", group=16) == pytest.approx(whole + pieces, rel=1e-3)
        assert {one.kind for one in compiled.collectives} == {"all-reduce"}
        return
    times = compiled.parts if compiled.layout.fsdp > 1 else 1
    assert compiled.bytes_of("all-gather", group=split) == pytest.approx(times * pieces / 2, rel=1e-3)  # in bfloat16
    # A token table whose pieces are 96 columns wide is added up whole: the compiler scatters only whole tiles.
    table = 4 * MODEL.vocab_size * MODEL.hidden_size
    assert compiled.bytes_of("reduce-scatter", group=split) >= 0.97 * times * (pieces - table)
    expected = collections.Counter({split: times * pieces})
    expected[16 // split] += pieces // split  # what a device then has is added up over data
    for group, size in expected.items():
        assert compiled.bytes_of("reduce-scatter", "all-reduce", group=group) == pytest.approx(size, rel=1e-3)
    assert compiled.bytes_of("all-reduce", group=16) <= whole + 4096


def test_the_number_of_exchanges_is_bounded(compiled: Compiled):
    """With pieces a gather and a scatter for each matrix; sums are merged into batches of 3 MB."""
    leaves = jax.tree.leaves(compiled.steps.state.params)
    count = sum(leaf.ndim > 1 for leaf in leaves)
    batches = 4 * sum(leaf.size for leaf in leaves) / 3e6
    scattered = max(compiled.layout.fsdp, compiled.layout.zero) > 1
    assert sum(one.times for one in compiled.collectives) <= 2 * count * scattered + batches + 10


def test_nothing_is_exchanged_in_the_loop_over_parts(compiled: Compiled):
    assert not [one for one in compiled.collectives if one.in_loop]


def test_some_exchanges_run_beside_products(compiled: Compiled):
    if compiled.parts > 1:
        pytest.skip("the products are in the loop over parts, and all exchanges before and after it")
    assert [one for one in compiled.collectives if one.asynchronous and one.size > 1e6]


def test_each_matrix_of_a_layer_is_gathered_beside_the_product_before_it(compiled: Compiled):
    if compiled.layout.fsdp == 1:
        pytest.skip("only fsdp gathers in the order of the layers")
    program = read_program(compiled.hlo, V5E.chips)
    products = {one.name for one in program.operations if one.kind == "product"}
    gathers = [one for one in program.collectives if one.kind == "all-gather"]
    beside = [one for one in gathers if one.asynchronous]
    # Six matrices in each layer, without the first of all, and those of the head and the pooler.
    assert len(beside) >= 6 * MODEL.num_hidden_layers - 1
    assert all(set(one.beside) & products for one in beside)
    waited = sum(one.size for one in gathers if not one.asynchronous)
    tables = MODEL.vocab_size + MODEL.max_position_embeddings + MODEL.type_vocab_size
    assert waited <= 2 * MODEL.hidden_size * (tables + MODEL.hidden_size)


def test_only_the_sum_of_the_token_table_is_waited_for(compiled: Compiled):
    if compiled.layout != MeshConfig():
        pytest.skip("pieces are gathered and scattered")
    waited = sum(one.size for one in compiled.collectives if not one.asynchronous)
    table, positions = (size * MODEL.hidden_size for size in (MODEL.vocab_size, MODEL.max_position_embeddings))
    assert 4 * table <= waited < 4 * (table + 2 * positions)  # biases, LayerNorms and token types


def test_no_chip_has_rows_of_others(compiled: Compiled):
    rows = {ROWS * compiled.parts, ROWS}
    sizes = rows | {count * length for count in rows for length in (LENGTH, PREDICTIONS)}
    found = re.findall(r"\b(?:pred|bf16|[suf]\d+)\[(\d+)(?:,\d+)*\]", compiled.hlo)
    assert not sizes & set(map(int, found))
    assert str(ROWS // V5E.chips) in found
