"""The tasks that `python -m train.finetune task=NAME` knows: one entry each. A new task is a new line here."""

from collections.abc import Callable

from bert_jax.data.tasks.conll import read_conll
from bert_jax.data.tasks.glue import GLUE
from bert_jax.data.tasks.labelled_text import Columns
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.tag_readers import read_klue_ner, read_naver_ner
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from train.finetune_recipe import FinetuneConfig
from train.task_answer import QuestionAnswering
from train.task_choose import MultipleChoice
from train.task_classify import Classification, Layout, glue_layout, table_layout
from train.task_data import TaskData
from train.task_files import FileNames
from train.task_tag import Reader, TokenClassification

Task = Callable[[FinetuneConfig, Tokenizer], TaskData]

_ENTAILMENT = ("contradiction", "entailment", "neutral")
_PAIR = Columns("sentence1", "sentence2", "gold_label")


def _classify(layout: Layout) -> Task:
    return lambda config, tokenizer: Classification(config, tokenizer, layout)


def _own_table(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskData:
    columns = Columns(config.text, config.pair, config.label, config.id, config.kind)
    return Classification(config, tokenizer, table_layout(columns, FileNames()))


def _tag(read: Reader, names: FileNames) -> Task:
    return lambda config, tokenizer: TokenClassification(config, tokenizer, read, names)


def _choose(form: str) -> Task:
    return lambda config, tokenizer: MultipleChoice(config, tokenizer, form)


def _answer(version: int) -> Task:
    return lambda config, tokenizer: QuestionAnswering(config, tokenizer, version)


TASKS: dict[str, Task] = {
    "classify": _own_table,
    **{name: _classify(glue_layout(name)) for name in GLUE},
    "snli": _classify(
        table_layout(
            _PAIR,
            FileNames(
                ("snli_1.0_train", "snli_train", "train", "snli_train_slice"),
                (("snli_1.0_dev", "snli_dev", "dev"),),
                (("snli_1.0_test", "snli_test", "test"),),
            ),
            labels=_ENTAILMENT,
        )
    ),
    "nsmc": _classify(
        table_layout(
            Columns("document", None, "label", "id"),
            FileNames(("ratings_train",), (("ratings_test",),), ()),
            labels=("0", "1"),
        )
    ),
    "korsts": _classify(
        table_layout(
            Columns("sentence1", "sentence2", "score", kind="number"),
            FileNames(("sts-train",), (("sts-dev",),), (("sts-test",),)),
        )
    ),
    "kornli": _classify(
        table_layout(
            _PAIR,
            FileNames(("multinli.train.ko", "snli_1.0_train.ko"), (("xnli.dev.ko",),), (("xnli.test.ko",),)),
            labels=_ENTAILMENT,
        )
    ),
    "tag": _tag(read_conll, FileNames()),
    "wnut17": _tag(
        read_conll, FileNames(("wnut17train",), (("emerging.dev",),), (("emerging.test.annotated", "emerging.test"),))
    ),
    "klue-ner": _tag(read_klue_ner, FileNames(("klue-ner-v1.1_train",), (("klue-ner-v1.1_dev",),), ())),
    "naver-ner": _tag(read_naver_ner, FileNames()),
    **{name: _choose(name) for name in CHOICE_READERS},
    "squad1": _answer(1),
    "squad2": _answer(2),
    "korquad": _answer(1),
}


def open_task(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskData:
    """The task of a run, its files read and encoded.

    Raises:
        FileNotFoundError, UserError: no such task, or files that are missing or not of its form.
    """
    if config.task not in TASKS:
        raise UserError(f"task: found {config.task!r}; there is {', '.join(TASKS)}")
    return TASKS[config.task](config, tokenizer)
