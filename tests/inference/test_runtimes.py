"""Other runtimes than XLA: the same results, order, bad items and streams; what is chosen; what is refused, and how."""

import gc
import logging
import subprocess
import sys
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.cli.verbs import info
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.formats.onnx import model as onnx_model
from bert_jax.formats.onnx.graph import Graph, in_memory
from bert_jax.inference.pipeline import pipeline
from bert_jax.inference.runtimes import choice, graphs, openvino
from bert_jax.inference.tasks import task_model
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.runtime.cpu import multiplies_bfloat16
from bert_jax.tree import flatten, unflatten
from tests.inference.tasks.task_folders import TAGS, export

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

TEXTS = ["hello world", "held", "", "hello held, world", "helo helo helo helo helo helo", "world " * 30] * 3
PAIRS = [("hello", "world"), ("held", "hello world"), ("hello world, held", "hello")] * 3


def _installed(package: str) -> Any:
    missing = find_spec(package) is None
    return pytest.param(package, marks=pytest.mark.skipif(missing, reason=f"{package} is not installed"))


both = pytest.mark.parametrize("runtime", [_installed("openvino"), _installed("onnxruntime")])
FOLDERS = {
    "embed": "encoder",
    "fill-mask": "mlm",
    "likelihood": "mlm",
    "next-sentence": "nsp",
    "text-classification": "sequence-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "multiple-choice": "multiple-choice",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(head, family, fields of the config) -> its folder, made once."""
    made: dict[Any, Any] = {}

    def of(head: str, family: str = "bert", **fields: Any):
        key = (head, family, *fields.items())
        if key not in made:
            labels = {"labels": ("bad", "good", "fair")} if head == "sequence-classification" else {}
            labels = {"labels": TAGS} if head == "token-classification" else labels
            made[key] = export(tmp_path_factory.mktemp("models"), head, family, **labels, **fields)
        return made[key]

    return of


def answers(task: str, folder: Any, runtime: str, **options: Any) -> list[Any]:
    predict: Any = pipeline(task, folder, runtime=runtime, dtype="float32", **options)
    if task == "fill-mask":
        mask = predict.tokenizer.mask_token
        return [
            predict([f"hello {mask}", f"{mask} held {mask} world"]),
            predict(f"hello {mask}", targets=["world", "held"]),
        ]
    if task == "next-sentence":
        return predict(PAIRS)
    if task == "multiple-choice":
        return predict([{"text": first, "choices": ["hello", second, "held"]} for first, second in PAIRS])
    if task == "question-answering":
        return predict([{"question": q, "context": f"{c} hello world held"} for q, c in PAIRS])
    return [*predict([text for text in TEXTS if text or task == "embed"]), predict("hello held")]


def assert_close(found: Any, want: Any) -> None:
    """Numbers to 1e-5, everything else equal."""
    assert type(found) is type(want)
    if isinstance(want, dict):
        assert found.keys() == want.keys()
        for key in want:
            assert_close(found[key], want[key])
    elif isinstance(want, list):
        assert len(found) == len(want)
        for one, other in zip(found, want, strict=True):
            assert_close(one, other)
    elif isinstance(want, float | np.ndarray):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    else:
        assert found == want


@pytest.mark.slow
@both
@pytest.mark.parametrize("task", FOLDERS)
def test_every_task_gives_the_results_of_xla(task, runtime, exported):
    folder = exported(FOLDERS[task])
    assert_close(answers(task, folder, runtime), answers(task, folder, "xla"))


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("roberta", {}),
        ("roberta", {"pad_token_id": 0}),  # each text begins with its id
        ("distilbert", {}),
        ("albert", {"embedding_size": 4}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"is_decoder": True}),
        ("bert", {"pruned_heads": ((0, (1,)),)}),
    ],
)
def test_packed_rows_of_every_family_give_the_vectors_of_xla(family, fields, runtime, exported):
    folder = exported("encoder-no-pooler" if family == "distilbert" else "encoder", family, **fields)
    assert_close(answers("embed", folder, runtime), answers("embed", folder, "xla"))


@pytest.mark.slow
@both
@pytest.mark.parametrize("pooling", ["cls", "max", "mean_sqrt_len_tokens", "pooled+normalize"])
def test_every_pooling_gives_the_vectors_of_xla(pooling, runtime, exported):
    folder = exported("encoder")
    want = answers("embed", folder, "xla", pooling=pooling)
    assert_close(answers("embed", folder, runtime, pooling=pooling), want)


@pytest.mark.slow
@both
def test_a_stream_keeps_the_order_and_the_places_of_bad_items(runtime, exported):
    embed = TextEmbedding(exported("encoder"), runtime=runtime)
    texts = [*TEXTS, "\ud800"] * 12
    found = list(embed.stream(iter(texts), chunk=50, on_error="return"))
    alone = {text: embed(text) for text in TEXTS}
    for number, (text, vector) in enumerate(zip(texts, found, strict=True), 1):
        if text in alone:
            np.testing.assert_allclose(vector, alone[text], atol=1e-5)
        else:
            assert f"text {number} is not valid Unicode" in str(vector)


@pytest.mark.slow
@both
def test_weights_that_exceed_one_file_are_read_from_two_which_then_go(runtime, exported, monkeypatch, tmp_path):
    """Above 2 GB, the limit of one protobuf; here above 100 bytes."""
    folder, parts = exported("encoder"), []

    def in_parts(graph):
        context = in_memory(graph, largest=100)
        parts.append(context)
        return context

    want = TextEmbedding(folder, runtime=runtime)(TEXTS)
    monkeypatch.setattr(graphs, "in_memory", in_parts)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    embed = TextEmbedding(folder, runtime=runtime)
    np.testing.assert_array_equal(embed(TEXTS), want)
    assert len(parts) == 1 and not list(tmp_path.iterdir())
    np.testing.assert_array_equal(embed(TEXTS), want)


@both
def test_threads_share_a_model(runtime, exported):
    embed = TextEmbedding(exported("encoder"), runtime=runtime)
    want = embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: embed(TEXTS), range(20)):
            np.testing.assert_allclose(found, want, atol=1e-5)


@both
def test_the_programs_are_fixed_in_advance(runtime, exported):
    embed = TextEmbedding(exported("encoder"), runtime=runtime)
    embed.compile_all()
    before = embed.compilations
    for count in (1, 2, 7, 100):
        embed(["hello " * (number % 40) for number in range(count)])
    assert embed.compilations == before <= len(embed.engine.shapes)


@both
def test_a_parameter_that_is_not_finite_is_named(runtime, exported):
    loaded = load(exported("encoder"))
    loaded.params["embeddings"]["LayerNorm"]["bias"] *= np.nan
    with pytest.raises(UserError, match="parameter embeddings/LayerNorm/bias is not finite"):
        TextEmbedding(loaded, runtime=runtime)("hello")


def test_openvino_takes_no_more_threads_than_a_container_may_use(exported, monkeypatch):
    openvino = pytest.importorskip("openvino", reason="the extra `openvino` is not installed")
    compile_model, threads = openvino.Core.compile_model, set()

    def compiled(*given):
        found = compile_model(*given)
        threads.add(found.get_property("INFERENCE_NUM_THREADS"))
        return found

    monkeypatch.setattr(openvino.Core, "compile_model", compiled)
    monkeypatch.setattr("bert_jax.inference.runtimes.openvino.cores", lambda: [0, 1])
    monkeypatch.setattr("bert_jax.inference.runtimes.openvino.core_count", lambda: 1)
    pipeline("embed", exported(FOLDERS["embed"]), runtime="openvino")("hello")
    assert threads == {1}


@pytest.mark.parametrize("task", ["embed", "fill-mask"])
@pytest.mark.parametrize("runtime", ["xla", _installed("openvino"), _installed("onnxruntime")])
def test_the_parameters_of_a_pipeline_go_with_the_last_reference_to_it(runtime, task, exported):
    predict: Any = pipeline(task, exported(FOLDERS[task]), runtime=runtime)
    predict("hello [MASK]")
    programs = weakref.ref(predict.engine.programs)
    gc.collect()
    gc.disable()
    try:
        del predict
        assert programs() is None
    finally:
        gc.enable()


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_a_request_that_nobody_waits_for_keeps_its_inputs(exported):
    """Else a stream that is left early computes with freed memory: a segmentation fault in the look-up of [CLS]."""
    embed = TextEmbedding(exported("encoder"), runtime="openvino", dtype="float32", pooling="cls")
    shape = (4, 512)  # longer than what NumPy keeps for itself when it is freed
    batch = {name: np.ones(shape, np.int32) for name in ("input_ids", "token_type_ids", "sequence_ids")}
    batch["position_ids"] = np.arange(4 * 512, dtype=np.int32).reshape(shape) % 8
    batch["starts"] = np.zeros((4, 3), np.int32)
    request, inputs = embed.engine.programs(batch).call
    request.wait()
    inputs.clear()
    others = [np.full(shape, 77, np.int64) for _ in range(50)]
    np.testing.assert_array_equal(request.get_tensor("position_ids").data, batch["position_ids"])
    assert len(others) == 50


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_bfloat16_of_openvino_moves_vectors_little(exported):
    if not multiplies_bfloat16():
        pytest.skip("this CPU has no instructions for bfloat16")
    half, whole = (TextEmbedding(exported("encoder"), runtime="openvino", dtype=t) for t in ("bfloat16", "float32"))
    cosines = (half(TEXTS) * whole(TEXTS)).sum(axis=1)
    assert cosines.min() > 0.999 and not np.array_equal(half(TEXTS), whole(TEXTS))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
@pytest.mark.parametrize("width", [128, 36, 160])  # a multiple of the 128 channels that have one scale, and others
def test_int8_answers_nearly_as_float32_does(width, exported):
    folder = exported("encoder", hidden_size=width, num_attention_heads=2, intermediate_size=4 * width)
    loaded = load(folder)
    flat = flatten(loaded.params)
    for path in (path for path in flat if path.endswith("/kernel")):
        flat[path] = (
            flat[path] / flat[path].shape[0] ** 0.5
        )  # else attention is all or nothing, and a rounding turns it
    loaded = loaded._replace(params=unflatten(flat))
    small, whole = (TextEmbedding(loaded, runtime="openvino", dtype=dtype) for dtype in ("int8", "float32"))
    assert "openvino, int8" in repr(small) and small.config.dtype == "float32"
    cosines = (small(TEXTS) * whole(TEXTS)).sum(axis=1)
    assert cosines.min() > 0.9995 and not np.array_equal(small(TEXTS), whole(TEXTS))
    np.testing.assert_allclose(small(TEXTS[:1])[0], small(TEXTS)[0], atol=0.01)


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
@pytest.mark.parametrize(
    ("int8", "amx", "reason"),
    [
        (False, False, "no instructions for it"),
        (True, False, ""),
        (True, True, "for one short text alone"),
        (None, None, ""),
    ],
)
def test_int8_on_a_cpu_where_it_saves_little_is_told(int8, amx, reason, monkeypatch, caplog):
    monkeypatch.setattr(openvino, "multiplies_int8", lambda: int8)
    monkeypatch.setattr(openvino, "multiplies_blocks", lambda: amx)
    options = openvino.compiler("int8")._options
    told = [(record.levelname, reason in record.message) for record in caplog.records if "saves" in record.message]
    assert told == [("WARNING", True)] * bool(reason)
    if amx:  # else it multiplies in bfloat16, and wrongly for some widths
        assert options["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino_is_imported_without_its_telemetry():
    code = """if True:
        import os, sys
        os.register_at_fork(before=lambda: print("forked"))
        from bert_jax.inference.runtimes.openvino import compiler
        compiler("float32")
        print(sorted(name for name in sys.modules if name.startswith("openvino_telemetry")))
        import openvino, openvino_telemetry
        print(callable(openvino.convert_model))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True"]


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_a_signal_reaches_a_program_whose_older_model_of_openvino_went_first():
    code = """if True:
        import signal
        from bert_jax.inference.runtimes.openvino import compiler
        older, younger = compiler("float32"), compiler("float32")
        del older
        del younger
        signal.signal(signal.SIGINT, lambda *_: print("handled"))
        signal.raise_signal(signal.SIGINT)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


@pytest.fixture
def own_choice(monkeypatch):
    """What is chosen where nobody says it."""
    monkeypatch.delenv(choice.RUNTIME_VARIABLE)
    monkeypatch.delenv(choice.DTYPE_VARIABLE)

    def chosen(
        *installed: str,
        bfloat16: bool | None = False,
        avx2: bool | None = False,
        runtime: str = "auto",
        dtype: str | None = None,
        devices: Any = None,
        alone: bool = False,
    ) -> Any:
        monkeypatch.setattr(choice, "find_spec", lambda package: package if package in installed else None)
        monkeypatch.setattr(choice, "multiplies_bfloat16", lambda: bfloat16)
        monkeypatch.setattr(choice, "computes_with_avx2_at_most", lambda: avx2)
        found = choice.choose(runtime, dtype, devices)
        return (found.alone, found.most_alone) if alone else found[:2]

    return chosen


def test_openvino_is_taken_where_it_is_installed_and_bfloat16_where_the_cpu_has_it(own_choice):
    assert own_choice() == ("xla", "float32")
    assert own_choice(bfloat16=True) == ("xla", "bfloat16")
    assert own_choice("openvino", "onnx", bfloat16=True) == ("openvino", "bfloat16")
    assert own_choice("openvino", "onnx") == ("openvino", "float32")
    assert own_choice("openvino") == ("xla", "float32")  # the graph is written with onnx
    assert own_choice("onnxruntime", "onnx", bfloat16=True) == ("xla", "bfloat16")
    assert own_choice(runtime="onnxruntime", bfloat16=True) == ("onnxruntime", "float32")


def test_onnxruntime_takes_single_rows_where_it_was_faster_and_nobody_says_otherwise(own_choice, monkeypatch):
    all_packages = ("openvino", "onnx", "onnxruntime")
    openvino = ("openvino", None)
    assert own_choice(*all_packages, avx2=True) == own_choice(*all_packages) == ("openvino", "float32")
    assert own_choice(*all_packages, avx2=True, alone=True) == ("onnxruntime", None)
    assert own_choice(*all_packages, alone=True) == ("onnxruntime", choice.MOST_ALONE)
    for bfloat16 in (True, None):
        assert own_choice(*all_packages, bfloat16=bfloat16, avx2=bfloat16, dtype="float32", alone=True) == openvino
    assert own_choice("openvino", "onnx", avx2=True, alone=True) == openvino
    assert own_choice("onnxruntime", "onnx", avx2=True, alone=True) == ("xla", None)
    assert own_choice(*all_packages, avx2=True, dtype="int8", alone=True) == openvino
    assert own_choice(*all_packages, avx2=True, runtime="openvino", alone=True) == openvino
    assert own_choice(*all_packages, runtime="onnxruntime", alone=True) == ("onnxruntime", None)
    monkeypatch.setenv(choice.RUNTIME_VARIABLE, "openvino")
    assert own_choice(*all_packages, avx2=True, alone=True) == openvino


@pytest.mark.skipif(not all(map(find_spec, ("openvino", "onnxruntime"))), reason="openvino or onnxruntime is missing")
@pytest.mark.parametrize(("avx2", "most", "programs"), [(True, "", 2), (False, " of at most 8 tokens", 3)])
def test_two_runtimes_share_a_pipeline(avx2, most, programs, own_choice, exported, monkeypatch):
    monkeypatch.setattr(choice, "MOST_ALONE", 8)
    own_choice("openvino", "onnx", "onnxruntime", avx2=avx2)
    folder = exported("encoder")
    embed = TextEmbedding(folder)
    want = TextEmbedding(folder, runtime="xla", dtype="float32")(TEXTS)
    np.testing.assert_allclose(embed(TEXTS), want, atol=1e-5)
    assert embed.compilations == 1
    for text, vector in zip(TEXTS, want, strict=True):
        np.testing.assert_allclose(embed(text), vector, atol=1e-5)
    sessions = embed.engine.programs._sessions
    assert sorted(key[:2] for key in sessions)[1:] == [(True, "onnxruntime"), (True, "openvino")][: programs - 1]
    assert embed.compilations == programs and f"openvino (one row{most}: onnxruntime), float32" in repr(embed)
    assert info.describe(folder)["runtime"] == {"name": f"openvino (one row{most}: onnxruntime)", "dtype": "float32"}


@pytest.mark.parametrize("runtime", [_installed("onnxruntime")])
def test_a_row_alone_has_no_padding_and_one_among_several_may(runtime, exported):
    """Attention leaves out the mask of the first, and not of the second: texts of 3 and 31 tokens are padded to 16 and 32."""
    folder = exported("encoder")
    texts = ["hello", "world " * 29]
    want = TextEmbedding(folder, runtime="xla", dtype="float32")(texts)
    embed = TextEmbedding(folder, runtime=runtime, dtype="float32", packing=False)
    np.testing.assert_allclose(embed(texts), want, atol=1e-5)
    assert embed.compilations == 1
    for text, vector in zip(texts, want, strict=True):
        np.testing.assert_allclose(embed(text), vector, atol=1e-5)
    assert embed.compilations == 2
    assert embed.compile_all() == 2


@both
@pytest.mark.parametrize("packing", [True, False])
def test_one_row_at_a_time_is_compiled_in_advance_too(runtime, packing, exported):
    """Among several texts a row may have padding, which onnxruntime computes by another graph."""
    embed = TextEmbedding(exported("encoder"), runtime=runtime, dtype="float32", packing=packing, batch_size=1)
    before = embed.compile_all()
    for texts in ("hello", ["hello", "world " * 29], ["hello"] * 3, ["world " * 40, "hello"]):
        embed(texts)
        assert embed.compilations == before


@both
def test_a_text_of_one_token_is_masked_alone_and_in_company(runtime, exported):
    score: Any = pipeline("likelihood", exported("mlm"), runtime=runtime, dtype="float32")
    want = pipeline("likelihood", exported("mlm"), runtime="xla", dtype="float32")("hello")["pll"]
    assert [score("hello")["pll"], score(["hello", "held, world"])[0]["pll"]] == pytest.approx([want] * 2, abs=1e-5)


@pytest.mark.parametrize("runtime", [_installed("onnxruntime")])
@pytest.mark.parametrize("fields", [{"position_embedding_type": "relative_key_query"}, {"is_decoder": True}], ids=str)
def test_a_row_alone_with_other_attention_gives_the_same(runtime, fields, exported):
    folder = exported("encoder", **fields)
    want = TextEmbedding(folder, runtime="xla", dtype="float32")("hello held, world")
    np.testing.assert_allclose(TextEmbedding(folder, runtime=runtime)("hello held, world"), want, atol=1e-5)


def test_a_refusal_names_the_runtime_that_refused():
    class Refusing:
        name, own_operators, any_length = "second", False, False

        def __call__(self, model: bytes | str, alone: bool) -> Any:
            raise RuntimeError("no kernel for Frobnicate\nat line 7")

    def graph(params: Any, inputs: Any, **options: Any) -> Graph:
        g = Graph()
        g.output("same", g.input("input_ids", ["B", "L"]), ["B", "L"], np.int64)
        return g

    programs = graphs.GraphPrograms("first (one row: second)", "float32", {}, graph, Refusing(), Refusing())
    with pytest.raises(
        UserError, match=r"^runtime='second' refuses this model \(no kernel for Frobnicate\); say runtime"
    ):
        programs({"input_ids": np.zeros((1, 3), np.int32)})


def test_who_names_devices_or_has_an_accelerator_gets_xla(own_choice, monkeypatch):
    both_packages = ("openvino", "onnx")
    assert own_choice(*both_packages, devices=jax.devices()) == ("xla", "float32")
    with jax.default_device(jax.devices()[0]):
        assert own_choice(*both_packages) == ("xla", "float32")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert own_choice(*both_packages, bfloat16=True) == ("xla", "float32")


def test_the_environment_says_what_is_taken_where_nobody_does(monkeypatch):
    monkeypatch.setenv(choice.RUNTIME_VARIABLE, "onnxruntime")
    assert choice.choose("auto", None, None)[:2] == ("onnxruntime", "float32")
    assert choice.choose("xla", "bfloat16", None)[:2] == ("xla", "bfloat16")
    monkeypatch.setenv(choice.RUNTIME_VARIABLE, "openvin")
    with pytest.raises(UserError, match="BERT_JAX_RUNTIME='openvin'; did you mean openvino"):
        choice.choose("auto", None, None)
    monkeypatch.setenv(choice.DTYPE_VARIABLE, "int8")
    with pytest.raises(UserError, match="dtype='int8': runtime='xla' does not compute in it; expected float32, bfloat"):
        choice.choose("xla", None, None)
    assert choice.choose("openvino", None, None)[:2] == ("openvino", "int8")
    monkeypatch.setenv(choice.DTYPE_VARIABLE, "int4")
    with pytest.raises(UserError, match="BERT_JAX_DTYPE=int4: expected one of float32, bfloat16, int8"):
        choice.choose("openvino", None, None)


def test_what_a_graph_cannot_have_is_left_to_xla_where_nobody_says_otherwise(exported, monkeypatch):
    folder = exported("encoder")
    for module in (task_model, onnx_model):
        monkeypatch.setattr(module, "is_expressible", lambda config: False)
    monkeypatch.setenv(choice.RUNTIME_VARIABLE, "openvino")
    assert TextEmbedding(folder).engine.programs.name == "xla"
    asked: list[dict[str, Any]] = [{"runtime": "onnxruntime"}, {"dtype": "int8"}]
    for said in asked:
        with pytest.raises(UserError, match="the ONNX form has no input"):
            TextEmbedding(folder, **said)


def test_info_says_what_a_pipeline_takes_here(own_choice, exported, capsys, monkeypatch):
    folder = exported("encoder")
    for installed in (("openvino", "onnx"), ()):
        own_choice(*installed, bfloat16=multiplies_bfloat16())  # the same packages and CPU for `info` and the pipeline
        if installed and find_spec("openvino") is None:
            continue
        told, taken = info.describe(folder)["runtime"], TextEmbedding(folder).engine.programs
        assert told == {"name": taken.name, "dtype": taken.dtype}
        assert main(["info", str(folder)]) == 0
        assert f"\nruntime     {taken.name}, {taken.dtype} (" in capsys.readouterr().out
    monkeypatch.setattr(choice, "is_for_cpu", lambda: False)
    monkeypatch.setattr(jax, "default_backend", lambda: pytest.fail("an accelerator is started"))
    assert info.describe(folder)["runtime"] == {"name": "xla", "dtype": "float32"}


def test_what_load_returned_keeps_its_type(exported, monkeypatch):
    monkeypatch.setenv(choice.DTYPE_VARIABLE, "bfloat16")
    assert "xla, bfloat16" in repr(TextEmbedding(exported("encoder")))
    assert "xla, float32" in repr(TextEmbedding(load(exported("encoder"))))


def test_what_is_taken_is_logged(exported, caplog):
    with caplog.at_level(logging.INFO):
        TextEmbedding(exported("encoder"))
    assert "model: xla computes in float32" in caplog.text


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_missing_package_is_named_with_what_installs_it(runtime, exported, monkeypatch):
    monkeypatch.setitem(sys.modules, runtime, None)
    with pytest.raises(UserError) as error:
        TextEmbedding(exported("encoder"), runtime=runtime)
    expected = f'runtime="{runtime}" needs the package {runtime}: pip install "bert-jax[{runtime}]"'
    assert str(error.value) == expected


def test_what_a_runtime_cannot_do_is_refused_in_one_line(exported):
    folder = exported("encoder")
    with pytest.raises(UserError, match=r"^runtime='onnx'; did you mean onnxruntime"):
        TextEmbedding(folder, runtime="onnx")
    with pytest.raises(UserError, match="devices: runtime='onnxruntime' runs on the CPU's cores; leave devices out"):
        TextEmbedding(folder, runtime="onnxruntime", devices=jax.devices())
    for runtime, types in (("xla", "float32, bfloat16, or"), ("onnxruntime", "float32, or")):
        with pytest.raises(
            UserError, match=f"dtype='int8': runtime='{runtime}' does not compute in it; expected {types} runtime='open"
        ):
            TextEmbedding(folder, runtime=runtime, dtype="int8")
    with pytest.raises(UserError, match="dtype='bfloat16': runtime=\"onnxruntime\" computes in float32"):
        TextEmbedding(folder, runtime="onnxruntime", dtype="bfloat16")
