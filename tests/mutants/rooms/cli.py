"""Mutants of the commands."""

from tests.mutants.mutant import Mutant

STREAMING = "bert_jax/cli/streaming.py"
ANSWER = "bert_jax/cli/answer.py"
CLASSIFY = "bert_jax/cli/classify.py"
EDIT = "bert_jax/cli/edit.py"
OF_COMMANDS = "tests/cli/test_commands.py"
OF_TASKS = "tests/cli/test_task_commands.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        STREAMING,
        'raise UserError(f"{wrong} of {count} could not be answered; the others were")',
        "pass",
        "a command with lines that could not be answered ends with 0",
        (f"{OF_TASKS}::test_a_bad_row_is_said_in_its_place_and_the_others_are_answered",),
    ),
    Mutant(
        STREAMING,
        'write(to_json({"error": str(result)}) if as_json else "")',
        "pass",
        "results after a bad line stand beside the wrong lines",
        (f"{OF_TASKS}::test_a_bad_row_is_said_in_its_place_and_the_others_are_answered",),
    ),
    Mutant(
        STREAMING,
        'say(f"error: {result}")',
        'write(f"error: {result}")',
        "errors stand among the results",
        (f"{OF_TASKS}::test_a_failure_is_a_line_of_its_own_on_stderr",),
    ),
    Mutant(
        "bert_jax/cli/arguments.py",
        '"dtype": arguments.dtype, "cache": True}',
        '"cache": True}',
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
        "bert_jax/__main__.py",
        "        return EXIT_PIPE_CLOSED",
        "        return EXIT_DONE",
        "a command whose reader went away ends with 0",
        (f"{OF_COMMANDS}::test_ctrl_c_is_130_and_a_closed_pipe_is_quiet",),
    ),
)
