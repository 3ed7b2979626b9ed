"""Mutants of the commands."""

from tests.mutants.mutant import Mutant

STREAMING = "bert_jax/cli/streaming.py"
ANSWER = "bert_jax/cli/verbs/answer.py"
CLASSIFY = "bert_jax/cli/verbs/classify.py"
EDIT = "bert_jax/surgery/edit.py"
OF_COMMANDS = "tests/cli/test_commands.py"
OF_TASKS = "tests/cli/test_task_commands.py"
OF_TEXTS = "tests/cli/test_texts.py"
SHARDS = "bert_jax/cli/shards.py"
OF_SHARDS = "tests/cli/test_shards.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        SHARDS,
        "stop = ((self.number - end) * chunks // self.count * chunk for end in (1, 0))",
        "stop = ((self.number - end) * total // self.count for end in (1, 0))",
        "a part begins within a chunk, and its texts get other bits than in one process",
        (f"{OF_SHARDS}::test_parts_are_whole_chunks_as_even_as_can_be_and_miss_nothing",),
    ),
    Mutant(
        SHARDS,
        "if facts.get(name) != self._facts.get(name):",
        "if False:",
        "parts that were made with different options are joined",
        (f"{OF_SHARDS}::test_parts_of_different_things_are_not_joined",),
    ),
    Mutant(
        SHARDS,
        "found == self._facts",
        "found is not None",
        "a part that was made of something else counts as complete",
        (f"{OF_SHARDS}::test_parts_of_different_things_are_not_joined",),
    ),
    Mutant(
        STREAMING,
        'raise Unanswered(f"{wrong} of {count:,} {items} could not be answered")',
        "pass",
        "a command with lines that could not be answered ends with 0",
        (f"{OF_TASKS}::test_a_bad_row_is_said_in_its_place_and_the_others_are_answered",),
    ),
    Mutant(
        STREAMING,
        'write(to_json({"error": in_own_options(result)}))',
        "pass",
        "results after a bad line stand beside the wrong lines",
        (f"{OF_TASKS}::test_a_bad_row_is_said_in_its_place_and_the_others_are_answered",),
    ),
    Mutant(
        STREAMING,
        "    say(error_line(in_own_options(error)))",
        "    write(error_line(in_own_options(error)))",
        "errors stand among the results",
        (f"{OF_TASKS}::test_a_failure_is_a_line_of_its_own_on_stderr",),
    ),
    Mutant(
        "bert_jax/cli/arguments.py",
        'for name in ("batch_size", "dtype", "runtime")}',
        'for name in ("batch_size", "runtime")}',
        "--dtype is not read",
        (f"{OF_TASKS}::test_every_verb_loads_its_model_with_the_products_type_that_is_asked_for",),
    ),
    Mutant(
        ANSWER,
        "odds[name] = min(answers.no_answer_score, _CERTAIN)",
        "odds[name] = -min(answers.no_answer_score, _CERTAIN)",
        "null odds have the other sign",
        (f"{OF_TASKS}::test_answer_writes_what_the_official_script_reads",),
    ),
    Mutant(
        CLASSIFY,
        'return row.text if row.pair is None else {"text": row.text, "text_pair": row.pair}',
        "return row.text",
        "the second text of a pair is not classified",
        (f"{OF_TASKS}::test_classify_reads_columns_of_a_table",),
    ),
    Mutant(
        EDIT,
        "tokenizer = tokenizer.with_max_length(positions)",
        "pass",
        "the tokenizer of a model for longer inputs cuts them as before",
        ("tests/cli/test_edit.py::test_everything_at_once",),
    ),
    Mutant(
        EDIT,
        'head = "mlm" if "mlm_head" in params else "encoder"',
        'head = "encoder"',
        "a DistilBERT loses its masked-LM head",
        ("tests/cli/test_edit.py::test_a_distilbert_of_some_layers",),
    ),
    Mutant(
        "bert_jax/__main__.py",
        "        return EXIT_USER_ERROR",
        "        return EXIT_DONE",
        "a user's mistake ends with 0",
        (f"{OF_COMMANDS}::test_mistakes_are_one_line_and_exit_code_2",),
    ),
    Mutant(
        STREAMING,
        "if os.path.lexists(target) and not overwrite:",
        "if False:",
        "results replace a file of the user's",
        (f"{OF_TEXTS}::test_results_go_to_a_file_which_is_replaced_only_on_request",),
    ),
    Mutant(
        "bert_jax/cli/arguments.py",
        "if target.is_dir() and any(target.iterdir()) and not arguments.overwrite:",
        "if False:",
        "an earlier export is replaced without being asked",
        (f"{OF_TEXTS}::test_an_export_and_vectors_are_replaced_only_on_request",),
    ),
    Mutant(
        "bert_jax/cli/texts.py",
        "    if looks_like_a_path:",
        "    if False:",
        "a mistyped file name is classified as a text",
        (f"{OF_TEXTS}::test_an_argument_is_a_file_if_it_exists_or_looks_like_one",),
    ),
    Mutant(
        "bert_jax/inference/tasks/task_source.py",
        "        fresh += biases",
        "        pass",
        "a classifier that was never trained looks like one that was",
        (f"{OF_TEXTS}::test_a_head_that_was_never_trained_says_so_in_its_answers",),
    ),
    Mutant(
        "bert_jax/cli/program.py",
        'return f"{own_name()}: error: "',
        'return "error: "',
        "errors do not name the program",
        ("tests/cli/test_program.py::test_an_error_begins_with_the_program_and_says_what_is_near",),
    ),
    Mutant(
        "bert_jax/cli/verbs/embed.py",
        '"line": row["corpus_id"] + 1',
        '"line": row["corpus_id"]',
        "similar counts lines from 0 in JSON and from 1 elsewhere",
        (f"{OF_TEXTS}::test_verbs_of_pairs_questions_and_documents_take_texts_too",),
    ),
    Mutant(
        "bert_jax/__main__.py",
        "        return EXIT_PIPE_CLOSED",
        "        return EXIT_DONE",
        "a command whose reader went away ends with 0",
        (f"{OF_COMMANDS}::test_ctrl_c_is_130_and_a_closed_pipe_is_quiet",),
    ),
)
