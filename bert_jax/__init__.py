"""BERT in JAX: the public names, and the letters that array names end in.

Array names (`x_BLD`), docstrings (`[B, L, D]`) and einsum strings use one letter per axis:

    B  rows of a batch           H  attention heads           V  vocabulary
    L  positions (queries)       K  size of one head, D / H   N  encoder layers
    M  positions (keys)          F  feed-forward size         P  predicted (masked) positions
    D  hidden size               E  width of the embeddings: D, except in ALBERT and ELECTRA
    C  classes

A file that needs another letter, or gives one of these another meaning, says so where the letter first stands.

Names are imported on first use (PEP 562), so that importing `bert_jax.data` or `bert_jax.formats`, which need only
NumPy, does not load JAX.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert_jax.config import BertConfig
    from bert_jax.data.pretraining.batches import Batches
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from bert_jax.formats.load import load
    from bert_jax.formats.write import save_pretrained
    from bert_jax.inference.pipeline import pipeline
    from bert_jax.model.encoder import Bert
    from bert_jax.model.heads import (
        BertForMaskedLM,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertLMHeadModel,
    )
    from bert_jax.model.task_heads import (
        BertForMultipleChoice,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
    )
    from bert_jax.training.mesh import make_mesh
    from bert_jax.training.optimizer import make_optimizer
    from bert_jax.training.step import TrainState, eval_step, init_state, train_step

if sys.platform == "win32":  # it has no fcntl, and none of the flags that files are opened with
    # With the package's name Python says it in one line for `python -m bert_jax` too.
    raise ImportError("bert_jax needs Linux or macOS; on Windows, install and run it in WSL", name=__name__)

_HOME = {
    "BertConfig": "config",
    "Bert": "model.encoder",
    "BertForPreTraining": "model.heads",
    "BertForMaskedLM": "model.heads",
    "BertForNextSentencePrediction": "model.heads",
    "BertLMHeadModel": "model.heads",
    "BertForSequenceClassification": "model.task_heads",
    "BertForTokenClassification": "model.task_heads",
    "BertForQuestionAnswering": "model.task_heads",
    "BertForMultipleChoice": "model.task_heads",
    "Tokenizer": "data.tokenizer.tokenizer",
    "load": "formats.load",
    "save_pretrained": "formats.write",
    "Batches": "data.pretraining.batches",
    "make_mesh": "training.mesh",
    "make_optimizer": "training.optimizer",
    "TrainState": "training.step",
    "init_state": "training.step",
    "train_step": "training.step",
    "eval_step": "training.step",
    "pipeline": "inference.pipeline",
}

__all__ = [
    "Batches",
    "Bert",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertLMHeadModel",
    "Tokenizer",
    "TrainState",
    "eval_step",
    "init_state",
    "load",
    "make_mesh",
    "make_optimizer",
    "pipeline",
    "save_pretrained",
    "train_step",
]


# Names of transformers and sentence-transformers -> what does the same here.
_ELSEWHERE = {
    "AutoConfig": "BertConfig.from_json(FILE), or load(SOURCE).config",
    "BertModel": "Bert; load(SOURCE).model",
    "AutoModel": "load(SOURCE): its model, params, tokenizer and config",
    "CrossEncoder": 'pipeline("text-classification", SOURCE, function_to_apply="sigmoid")',
    "SentenceTransformer": 'pipeline("embed", SOURCE)',
    "Trainer": "python -m train.finetune",
    "TrainingArguments": "python -m train.finetune CONFIG.py --fields",
} | dict.fromkeys(("AutoTokenizer", "BertTokenizer", "BertTokenizerFast"), "Tokenizer")


def __getattr__(name: str):
    if name == "__version__":
        return version("bert-jax")
    if ours := _ELSEWHERE.get("AutoModel" if name.startswith("AutoModelFor") else name):
        # `from bert_jax import` would hide an AttributeError's message, and `hasattr` lets no other error pass.
        imported = sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap"
        raise (ImportError if imported else AttributeError)(f"bert_jax has no {name}; here it is {ours}")
    if name not in _HOME:
        raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
    return getattr(import_module(f"bert_jax.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
