"""Mutants of the operations on trained models."""

from tests.mutants.mutant import Mutant

POSITIONS = "bert_jax/surgery/positions.py"
PRUNING = "bert_jax/surgery/pruning.py"
VOCABULARY = "bert_jax/surgery/vocabulary.py"
OF_LAYERS = "tests/surgery/test_layers.py"
OF_POSITIONS = "tests/surgery/test_positions.py"
OF_PRUNING = "tests/surgery/test_pruning.py"
OF_VOCABULARY = "tests/surgery/test_vocabulary.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        PRUNING,
        'encoder["encoder"][f"layer_{layer}"] for i, layer',
        'encoder["encoder"][f"layer_{i}"] for i, layer',
        "the first layers are kept and not those that were named",
        (f"{OF_LAYERS}::test_kept_layers_move_up_with_their_pruned_heads",),
    ),
    Mutant(
        PRUNING,
        "(i, gone[layer]) for i, layer in",
        "(layer, gone[layer]) for i, layer in",
        "pruned heads stay with the numbers that layers had before",
        (f"{OF_LAYERS}::test_kept_layers_move_up_with_their_pruned_heads",),
    ),
    Mutant(
        PRUNING,
        'np.asarray(embeddings["position_embeddings"]) + first_type',
        'np.asarray(embeddings["position_embeddings"])',
        "a DistilBERT lacks the token type that its teacher adds",
        (f"{OF_LAYERS}::test_a_distilbert_with_all_layers_predicts_what_its_teacher_does",),
    ),
    Mutant(
        POSITIONS,
        'rows[np.arange(length) % now] if how == "tile"',
        'rows[np.minimum(np.arange(length), now - 1)] if how == "tile"',
        "new positions repeat the last row and not the table",
        (f"{OF_POSITIONS}::test_tiled_rows_begin_again",),
    ),
    Mutant(
        POSITIONS,
        "where = np.linspace(0, len(rows) - 1, length)",
        "where = np.linspace(0, len(rows) - 1, length, endpoint=False)",
        "a stretched table loses its last row",
        (f"{OF_POSITIONS}::test_interpolated_rows_lie_on_the_line_between_their_neighbours",),
    ),
    Mutant(
        POSITIONS,
        "np.split(table, [config.max_position_embeddings - now])",
        "np.split(table, [0])",
        "RoBERTa's rows before its first position are repeated with the others",
        (f"{OF_POSITIONS}::test_roberta_keeps_the_rows_before_its_first_position",),
    ),
    Mutant(
        PRUNING,
        'output = {**attention["output"], "kernel": attention["output"]["kernel"][columns]}',
        'output = {**attention["output"], "kernel": attention["output"]["kernel"][: len(columns)]}',
        "the output loses the blocks of other heads than the queries do",
        (f"{OF_PRUNING}::test_the_blocks_of_a_head_go_and_the_bias_of_the_output_stays",),
    ),
    Mutant(
        PRUNING,
        "gone[layer] = gone.get(layer, set()) | set(_checked(config, layer, numbers))",
        "gone[layer] = set(_checked(config, layer, numbers))",
        "heads that were pruned before are forgotten",
        (f"{OF_PRUNING}::test_numbers_are_those_before_any_pruning_and_what_is_gone_is_passed_over",),
    ),
    Mutant(
        VOCABULARY,
        "(old if rows is None else old[list(rows)]).mean(axis=0, dtype=np.float64)",
        "(old if rows is None else old[list(rows)[:1]]).mean(axis=0, dtype=np.float64)",
        "a new word gets the row of its first piece alone",
        (f"{OF_VOCABULARY}::test_unused_places_are_filled_in_order_and_no_size_changes",),
    ),
    Mutant(
        VOCABULARY,
        'for name in ("bias", "decoder") if name in',
        'for name in ("bias",) if name in',
        "a decoder that is not tied stays as short as it was",
        (f"{OF_VOCABULARY}::test_an_untied_decoder_grows_too",),
    ),
    Mutant(
        "bert_jax/surgery/pruning.py",
        'if not name.startswith("layer_")}',
        "if False}",
        "a shallower ELECTRA has no projection",
        ("tests/surgery/test_layers.py::test_an_electra_keeps_its_projection",),
    ),
)
