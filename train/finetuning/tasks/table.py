"""The tasks that `python -m train.finetune task=NAME` knows. To add a task, add an entry here."""

from collections.abc import Callable

from bert_jax.data.tasks.labelled_text import Columns
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.published import GLUE, PUBLISHED_TABLES
from bert_jax.data.tasks.tags import read_conll, read_klue_ner, read_naver_ner
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.answer import ANSWER_TASKS, AnswerRules, AnswerTask
from train.finetuning.tasks.choose import ChoiceTask
from train.finetuning.tasks.classify import ClassifyTask, Layout, glue_layout, table_layout
from train.finetuning.tasks.data import FileNames, TaskData
from train.finetuning.tasks.tag import TagLayout, TagTask, entity_layout, read_tagged, word_layout

Task = Callable[[FinetuneConfig, Tokenizer], TaskData]


def _classify(layout: Layout) -> Task:
    return lambda config, tokenizer: ClassifyTask(config, tokenizer, layout)


def _own_table(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskData:
    columns = Columns(config.text, config.pair, config.label, config.id, config.kind)
    layout = table_layout(columns, FileNames())._replace(own=True)
    if config.kind == "number":
        layout = layout._replace(metric="r2")  # a correlation is as high where all predictions are far from the labels
    return ClassifyTask(config, tokenizer, layout)


def _tag(layout: TagLayout) -> Task:
    return lambda config, tokenizer: TagTask(config, tokenizer, layout)


def _choose(form: str) -> Task:
    return lambda config, tokenizer: ChoiceTask(config, tokenizer, form)


def _answer(version: int, rules: AnswerRules) -> Task:
    return lambda config, tokenizer: AnswerTask(config, tokenizer, version, rules)


TASKS: dict[str, Task] = {
    "classify": _own_table,
    **{name: _classify(glue_layout(name)) for name in GLUE},
    "snli": _classify(
        table_layout(
            PUBLISHED_TABLES["snli"].columns,
            FileNames(
                ("snli_1.0_train", "snli_train", "train", "snli_train_slice"),
                (("snli_1.0_dev", "snli_dev", "dev"),),
                (("snli_1.0_test", "snli_test", "test"),),
            ),
            labels=PUBLISHED_TABLES["snli"].labels,
            empty_texts=True,
        )
    ),
    "nsmc": _classify(
        table_layout(
            PUBLISHED_TABLES["nsmc"].columns,
            FileNames(("ratings_train",), (("ratings_test",),), ()),
            labels=PUBLISHED_TABLES["nsmc"].labels,
            empty_texts=True,
        )
    ),
    "korsts": _classify(
        table_layout(
            PUBLISHED_TABLES["korsts"].columns,
            FileNames(("sts-train",), (("sts-dev",),), (("sts-test",),)),
            empty_texts=True,
        )
    ),
    "kornli": _classify(
        table_layout(
            PUBLISHED_TABLES["kornli"].columns,
            FileNames(
                ("multinli.train.ko", "snli_1.0_train.ko"),
                (("xnli.dev.ko",),),
                (("xnli.test.ko",),),
                more=("snli_1.0_train.ko",),
            ),
            labels=PUBLISHED_TABLES["kornli"].labels,
            empty_texts=True,
        )
    ),
    "tag": _tag(entity_layout(FileNames(), read_tagged)),
    "pos": _tag(
        word_layout(FileNames(("train", "*-ud-train"), ((*FileNames().dev[0], "*-ud-dev"),), (("test", "*-ud-test"),)))
    ),
    "wnut17": _tag(
        entity_layout(
            FileNames(("wnut17train",), (("emerging.dev",),), (("emerging.test.annotated", "emerging.test"),)),
            read_conll,
        )
    ),
    "klue-ner": _tag(entity_layout(FileNames(("klue-ner-v1.1_train",), (("klue-ner-v1.1_dev",),), ()), read_klue_ner)),
    "naver-ner": _tag(entity_layout(FileNames(), read_naver_ner)),
    **{name: _choose(name) for name in CHOICE_READERS},
    **{name: _answer(*kind) for name, kind in ANSWER_TASKS.items()},
}


def open_task(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskData:
    """Opens the task of a run: reads and encodes its files.

    Raises:
        FileNotFoundError, UserError: no such task, or its files are missing or have another format.
    """
    if config.task not in TASKS:
        raise UserError(f"task: found {config.task!r}; expected one of {', '.join(TASKS)}")
    return TASKS[config.task](config, tokenizer)
