"""The tasks that `python -m train.finetune task=NAME` knows. To add a task, add an entry here."""

from collections.abc import Callable
from functools import partial

from bert_jax.data.tasks.labelled_text import Columns
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.published import GLUE, PUBLISHED_TABLES
from bert_jax.data.tasks.tags import read_conll, read_klue_ner, read_naver_ner
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.answer import ANSWER_TASKS, AnswerTask
from train.finetuning.tasks.choose import ChoiceTask
from train.finetuning.tasks.classify import ClassifyTask, glue_layout, table_layout
from train.finetuning.tasks.data import FileNames, TaskData
from train.finetuning.tasks.tag import Read, TagTask, entity_layout, read_tagged, word_layout

Task = Callable[[FinetuneConfig, Tokenizer], TaskData]


def _own_table(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskData:
    columns = Columns(config.text, config.pair, config.label, config.id, config.kind)
    layout = table_layout(columns, FileNames())._replace(own=True)
    if config.kind == "number":
        layout = layout._replace(metric="r2")  # a correlation is as high where all predictions are far from the labels
    return ClassifyTask(config, tokenizer, layout)


def _published(name: str, files: FileNames) -> Task:
    """The task of a published table, which may have empty texts."""
    columns, labels = PUBLISHED_TABLES[name]
    return partial(ClassifyTask, layout=table_layout(columns, files, labels=labels, empty_texts=True))


def _entities(files: FileNames, read: Read) -> Task:
    return partial(TagTask, layout=entity_layout(files, read))


TASKS: dict[str, Task] = {
    "classify": _own_table,
    **{name: partial(ClassifyTask, layout=glue_layout(name)) for name in GLUE},
    "snli": _published(
        "snli",
        FileNames(
            ("snli_1.0_train", "snli_train", "train", "snli_train_slice"),
            (("snli_1.0_dev", "snli_dev", "dev"),),
            (("snli_1.0_test", "snli_test", "test"),),
        ),
    ),
    "nsmc": _published("nsmc", FileNames(("ratings_train",), (("ratings_test",),), ())),
    "korsts": _published("korsts", FileNames(("sts-train",), (("sts-dev",),), (("sts-test",),))),
    "kornli": _published(
        "kornli",
        FileNames(
            ("multinli.train.ko", "snli_1.0_train.ko"),
            (("xnli.dev.ko",),),
            (("xnli.test.ko",),),
            more=("snli_1.0_train.ko",),
        ),
    ),
    "tag": _entities(FileNames(), read_tagged),
    "pos": partial(
        TagTask,
        layout=word_layout(
            FileNames(("train", "*-ud-train"), ((*FileNames().dev[0], "*-ud-dev"),), (("test", "*-ud-test"),))
        ),
    ),
    "wnut17": _entities(
        FileNames(("wnut17train",), (("emerging.dev",),), (("emerging.test.annotated", "emerging.test"),)), read_conll
    ),
    "klue-ner": _entities(FileNames(("klue-ner-v1.1_train",), (("klue-ner-v1.1_dev",),), ()), read_klue_ner),
    "naver-ner": _entities(FileNames(), read_naver_ner),
    **{name: partial(ChoiceTask, form=name) for name in CHOICE_READERS},
    **{name: partial(AnswerTask, version=version, rules=rules) for name, (version, rules) in ANSWER_TASKS.items()},
}


def open_task(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskData:
    """Opens the task of a run: reads and encodes its files.

    Raises:
        FileNotFoundError, UserError: no such task, or its files are missing or have another format.
    """
    if config.task not in TASKS:
        raise UserError(f"task: found {config.task!r}; expected one of {', '.join(TASKS)}")
    return TASKS[config.task](config, tokenizer)
