"""Mutants of the engine, the pipelines, and what looks into a model."""

from tests.mutants.mutant import Mutant

BATCHING = "bert_jax/inference/engine/batching.py"
ENGINE = "bert_jax/inference/engine/engine.py"
ANSWERS = "bert_jax/inference/tasks/question_answering.py"
TAGS = "bert_jax/inference/tasks/token_classification.py"
FILL = "bert_jax/inference/tasks/fill_mask.py"
EMBED = "bert_jax/inference/tasks/embed.py"
LIKELIHOOD = "bert_jax/inference/tasks/likelihood.py"
CHOICE = "bert_jax/inference/runtimes/choice.py"
GRAPHS = "bert_jax/inference/runtimes/graphs.py"
OF_RUNTIMES = "tests/inference/test_runtimes.py"
OF_PACKING = "tests/inference/engine/test_packing.py"
OF_ENGINE = "tests/inference/engine/test_engine.py"
OF_TAGS = "tests/inference/tasks/test_token_classification.py"
OF_CLASSES = "tests/inference/tasks/test_text_classification.py"
OF_WORDS = f"{OF_TAGS}::test_the_chances_of_a_word_are_those_of_its_first_or_surest_sub_token_or_their_mean"
OF_EMBED = "tests/inference/tasks/test_embed.py"
OF_VECTORS = f"{OF_EMBED}::test_neither_padding_nor_a_neighbour_in_its_row_is_in_a_vector"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "bert_jax/inference/runtimes/openvino.py",
        "openvino.Tensor, _core(openvino)",
        "openvino.Tensor, openvino.Core()",
        "a signal is a segmentation fault after two pipelines were dropped",
        (f"{OF_RUNTIMES}::test_a_signal_reaches_a_program_whose_older_model_of_openvino_went_first",),
    ),
    Mutant(
        CHOICE,
        "if installed and not named and _is_on_cpu(devices)",
        "if installed and _is_on_cpu(devices)",
        "another runtime computes where the user named JAX's devices",
        (f"{OF_RUNTIMES}::test_who_names_devices_or_has_an_accelerator_gets_xla",),
    ),
    Mutant(
        CHOICE,
        '"bfloat16" if can and multiplies_bfloat16()',
        '"bfloat16" if can',
        "bfloat16 on a CPU that has no instructions for it",
        (f"{OF_RUNTIMES}::test_openvino_is_taken_where_it_is_installed_and_bfloat16_where_the_cpu_has_it",),
    ),
    Mutant(
        "bert_jax/formats/onnx/encoder.py",
        "_own_sequence(g, mask) if by_sequence else _mask(g, config, mask)",
        "_mask(g, config, mask)",
        "the sequences of a packed row attend to one another on other runtimes",
        (f"{OF_RUNTIMES}::test_packed_rows_of_every_family_give_the_vectors_of_xla",),
    ),
    Mutant(
        "bert_jax/formats/onnx/encoder.py",
        'for part in ("query", "key", "value")]',
        'for part in ("key", "query", "value")]',
        "onnxruntime's own attention takes keys for queries",
        (f"{OF_RUNTIMES}::test_packed_rows_of_every_family_give_the_vectors_of_xla",),
    ),
    Mutant(
        CHOICE,
        "if can and multiplies_bfloat16() is False:",
        "if can:",
        "onnxruntime takes single rows where it was not measured to be faster",
        (f"{OF_RUNTIMES}::test_onnxruntime_takes_single_rows_where_it_was_faster_and_nobody_says_otherwise",),
    ),
    Mutant(
        "bert_jax/inference/engine/engine.py",
        "length = own if own <= self.programs.unpadded else self._alone_length(own)",
        "length = self._alone_length(own)",
        "a row by itself is padded where no length costs anything",
        (
            "tests/inference/engine/test_engine.py::test_a_row_by_itself_has_no_padding_where_a_new_length_takes_no_time",
        ),
    ),
    Mutant(
        "bert_jax/inference/engine/engine.py",
        "yield [_Member(0, 0, slice(0, own) if self._per_token else slice(None))], examples.only_row(length)",
        "yield [_Member(0, 0)], examples.only_row(length)",
        "a row by itself gets outputs for its padding",
        ("tests/inference/engine/test_engine.py::test_packed_sequences_get_what_they_get_alone",),
    ),
    Mutant(
        "bert_jax/inference/tasks/embed.py",
        'counts = g.op("Max", g.op("ReduceSum", weights, [2], keepdims=1), 1.0)',
        'counts = g.op("ReduceSum", weights, [2], keepdims=1)',
        "unused places of a packed row divide by zero on other runtimes",
        (f"{OF_RUNTIMES}::test_a_stream_keeps_the_order_and_the_places_of_bad_items",),
    ),
    Mutant(
        ENGINE,
        "min(self.programs.full_batch, -(-tokens // self.programs.at_once))",
        "self.programs.full_batch",
        "a few texts are computed by one core while the others wait",
        (f"{OF_ENGINE}::test_few_texts_are_shared_out_over_the_batches_that_run_at_the_same_time",),
    ),
    Mutant(
        ENGINE,
        "max(IN_FLIGHT, 2 * self.programs.at_once)",
        "IN_FLIGHT",
        "with many cores some wait for batches",
        (f"{OF_ENGINE}::test_as_many_batches_wait_as_keep_the_runtime_busy",),
    ),
    Mutant(
        BATCHING,
        "length *= 2",
        "length *= 3",
        "more than half of a compiled length may be padding",
        (f"{OF_PACKING}::test_lengths_double_up_to_the_longest",),
    ),
    Mutant(
        BATCHING,
        "bisect_left(buckets, length)",
        "min(bisect_left(buckets, length + 1), len(buckets) - 1)",
        "a row that fills its length is padded to the next one",
        (f"{OF_PACKING}::test_plans_hold_every_row_once_in_a_bucket_that_takes_it",),
    ),
    Mutant(
        BATCHING,
        "if left and len(rows[row].numbers) < most:",
        "if left:",
        "a packed row takes more sequences than the engine reads",
        (f"{OF_PACKING}::test_a_row_takes_no_more_sequences_than_it_may",),
    ),
    Mutant(
        ENGINE,
        "results[call.chunk][example] = tuple(",
        "results[call.chunk][row] = tuple(",
        "results come in the order of their batches",
        (
            "tests/inference/engine/test_engine.py::test_results_come_in_the_order_of_the_input_from_any_number_of_chunks",
        ),
    ),
    Mutant(
        ENGINE,
        "if not all(np.isfinite(array).all() for array in arrays if",
        "if False and not all(np.isfinite(array).all() for array in arrays if",
        "outputs that are not finite are answered with",
        ("tests/inference/engine/test_engine.py::test_weights_that_are_not_finite_are_named_and_never_answered_with",),
    ),
    Mutant(
        ANSWERS,
        "legal &= (end_SE >= start_SE) & (end_SE - start_SE < max_answer_length)",
        "legal &= (end_SE >= start_SE) & (end_SE - start_SE <= max_answer_length)",
        "an answer may be a token longer than asked for",
        ("tests/data/tasks/test_passages.py::test_answers_are_those_of_the_definition",),
    ),
    Mutant(
        ANSWERS,
        "& passages.is_best[row, start_SE]",
        "",
        "an answer is taken from a window that shows little around it",
        ("tests/data/tasks/test_passages.py::test_answers_are_those_of_the_definition",),
    ),
    Mutant(
        ANSWERS,
        "null[number] = min(null[number], float(start_L[0]) + float(end_L[0]))",
        "null[number] = float(start_L[0]) + float(end_L[0])",
        "that there is no answer is the last window's word",
        ("tests/data/tasks/test_passages.py::test_answers_are_those_of_the_definition",),
    ),
    Mutant(
        ANSWERS,
        "return self.null_score - self.candidates[0].score if",
        "return self.candidates[0].score - self.null_score if",
        "no answer is given where the best one is sure",
        ("tests/data/tasks/test_passages.py::test_answers_are_those_of_the_definition",),
    ),
    Mutant(
        ANSWERS,
        "if text and text not in kept:",
        "if text:",
        "equal answers overwrite one another, so that the worse score stays",
        ("tests/data/tasks/test_passages.py::test_answers_are_those_of_the_definition",),
    ),
    Mutant(
        ANSWERS,
        "+ [null_score] * null_answers)",
        "+ [null_score] * 0)",
        "no answer has no share of the probability",
        ("tests/data/tasks/test_passages.py::test_answers_are_those_of_the_definition",),
    ),
    Mutant(
        TAGS,
        'or type_ != groups[-1][0] or prefix in "BS"',
        'or type_ != groups[-1][0] or prefix in "S"',
        "two entities of a type side by side are one",
        (f"{OF_TAGS}::test_tags_of_every_scheme_become_entities",),
    ),
    Mutant(
        TAGS,
        "words_of if self._labels_words else entities_of",
        "entities_of",
        "two nouns side by side are one",
        ("tests/train/finetuning/test_finetune.py::test_every_kind_of_task_is_learnt[pos-accuracy-0.9]",),
    ),
    Mutant(
        TAGS,
        "np.add.reduceat(chances_PC, begins, axis=0) / counts[:, None]",
        "np.add.reduceat(chances_PC, begins, axis=0)",
        "the average over sub-tokens is their sum",
        (OF_WORDS,),
    ),
    Mutant(
        TAGS,
        "return chances_PC[begins]",
        "return chances_PC[begins + counts - 1]",
        "a word has the label of its last sub-token",
        (OF_WORDS,),
    ),
    Mutant(
        FILL,
        "probabilities_BPV[..., : self.tokenizer.vocab_size]",
        "probabilities_BPV",
        "rows that a table was padded by may fill a mask",
        ("tests/inference/test_pipelines.py::test_padding_rows_of_the_table_never_win",),
    ),
    Mutant(
        FILL,
        "np.argsort(-scores_k[: len(asked.targets)]",
        "np.argsort(scores_k[: len(asked.targets)]",
        "of the targets the worst is first",
        ("tests/inference/tasks/test_hostile_texts.py::test_targets_are_scored_alone_and_what_is_no_token_is_said",),
    ),
    Mutant(
        FILL,
        "filled = asked.ids.copy()",
        "filled = asked.ids",
        "a mask that was filled stays so for the next one",
        ("tests/inference/test_pipelines.py::test_each_of_several_masks_is_filled_on_its_own",),
    ),
    Mutant(
        EMBED,
        "return sums_BD / _divisor(weights_BL.sum(axis=1), kind)[:, None]",
        "return sums_BD / _divisor(weights_BL.sum(axis=1) * 0 + mask_BL.shape[1], kind)[:, None]",
        "the mean is over padding too",
        (OF_VECTORS,),
    ),
    Mutant(
        EMBED,
        "jnp.where(mask_BL[..., None] > 0, x_BLD, -jnp.inf).max(axis=1)",
        "x_BLD.max(axis=1)",
        "the greatest is sought in padding too",
        (OF_VECTORS,),
    ),
    Mutant(
        EMBED,
        'jnp.sqrt(counts) if kind == "mean_sqrt_len_tokens"',
        'counts if kind == "mean_sqrt_len_tokens"',
        "the sum over the root of how many is the mean",
        (OF_VECTORS,),
    ),
    Mutant(
        EMBED,
        "(of_BL[:, None, :] == numbers_1K1)",
        "(of_BL[:, None, :] >= numbers_1K1)",
        "a packed text's vector has those after it in its mean",
        (OF_VECTORS,),
    ),
    Mutant(
        LIKELIHOOD,
        "self._not_asked = [i for i in self.tokenizer.all_special_ids if i != unknown]",
        "self._not_asked = list(self.tokenizer.all_special_ids)",
        "unknown words are not scored",
        ("tests/inference/tasks/test_likelihood.py::test_special_tokens_of_a_text_are_not_asked_for_but_are_seen",),
    ),
    Mutant(
        LIKELIHOOD,
        "math.exp(min(-pll / count, _LARGEST))",
        "math.exp(min(-pll, _LARGEST))",
        "the pseudo-perplexity is not a token's",
        ("tests/inference/tasks/test_likelihood.py::test_scores_are_those_of_one_row_at_a_time",),
    ),
    Mutant(
        "bert_jax/inference/tasks/next_sentence.py",
        '"is_next": float(r[0])',
        '"is_next": float(r[1])',
        "that B follows A is told by the other logit",
        ("tests/inference/tasks/test_next_sentence.py::test_a_pair_has_the_probability_that_the_models_head_gives_it",),
    ),
    Mutant(
        "bert_jax/inference/tasks/text_classification.py",
        'best = np.argsort(-scores_C, kind="stable")[:top_k]',
        'best = np.argsort(scores_C, kind="stable")[:top_k]',
        "the least likely class is first",
        (f"{OF_CLASSES}::test_classes_come_best_first_with_what_the_problem_makes_of_their_logits",),
    ),
    Mutant(
        "bert_jax/inference/tasks/text_classification.py",
        'by_problem = {"regression": "none", "multi_label_classification": "sigmoid"}',
        'by_problem = {"regression": "none"}',
        "several labels share one softmax",
        (f"{OF_CLASSES}::test_classes_come_best_first_with_what_the_problem_makes_of_their_logits",),
    ),
    Mutant(
        GRAPHS,
        """if compiler.any_length and alone and not batch["attention_mask"].all():""",
        "if False:",
        "a row with padding loses its mask",
        (f"{OF_RUNTIMES}::test_a_row_alone_has_no_padding_and_one_among_several_may",),
    ),
)
