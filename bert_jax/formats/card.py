"""The model card: the README.md of an exported folder. It says what the model is, and how it was trained."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config import MODEL_TYPES, BertConfig
from bert_jax.formats.hub_files import DEFAULT_REVISION, HubId
from bert_jax.formats.names.parameters import architecture_of
from bert_jax.formats.training_record import table

_FRONT_MATTER = """---
{library}{task}tags:
- {model_type}
- jax
- bert_jax
{more}---
"""
_TASKS = {
    "pretraining": "fill-mask",
    "mlm": "fill-mask",
    "encoder": "feature-extraction",
    "encoder-no-pooler": "feature-extraction",
    "sequence-classification": "text-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "multiple-choice": "multiple-choice",
    "causal-lm": "text-generation",
}
_LIBRARIES = {"hf": "transformers", "sentence-transformers": "sentence-transformers"}
_PURPOSES = {"tf1": "Google's TensorFlow code", "onnx": "ONNX runtimes"}


def model_card(
    config: BertConfig, head: str, card: Mapping[str, Any] | str | None, *, name: str, form: str = "hf"
) -> str:
    """The text of README.md: what the model is, how it was trained (as far as `card` says), how to load it.

    Args:
        config: the architecture.
        head: the head that the folder is for.
        card: facts, printed as a table in their order; or Markdown, which is copied; None: the card says "Not
            recorded".
        name: the title.
        form: the folder's form: "hf", "sentence-transformers", "tf1" or "onnx".
    """
    architecture = architecture_of(config, head)
    size = (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {config.num_attention_heads} heads, "
        f"feed-forward {config.intermediate_size}, {config.vocab_size} tokens, at most {config.longest_input} positions"
    )
    task = "sentence-similarity" if form == "sentence-transformers" else _TASKS.get(head)
    front = _FRONT_MATTER.format(
        library=f"library_name: {_LIBRARIES[form]}\n" if form in _LIBRARIES else "",
        task=f"pipeline_tag: {task}\n" if task else "",
        model_type=config.model_type,
        more="- onnx\n" if form == "onnx" else "",
    )
    purpose = _PURPOSES.get(form, f"`{architecture}`")
    without = ", add_pooling_layer=False" if head == "encoder-no-pooler" and config.has_pooler else ""
    choices, axes = ("[:, None]", " [questions, choices, tokens]") if head == "multiple-choice" else ("", "")
    kind = config.model_type
    vocabulary = "`--spm_model_file` (`--vocab_file` for a vocab.txt)" if kind == "albert" else "`--vocab_file`"
    return "\n".join(
        [
            front,
            f"# {name}\n",
            f"{MODEL_TYPES[config.model_type].title} ({size}), written by bert_jax for {purpose}.\n",
            "## How it was trained\n",
            _training(card),
            "## How to load it\n",
            _LOADING[form].format(
                architecture=architecture, without=without, choices=choices, axes=axes, kind=kind, vocabulary=vocabulary
            ),
            *([] if form == "onnx" else [*_warnings(config), _OURS]),
        ]
    )


def _warnings(config: BertConfig) -> list[str]:
    """A line for each feature of the model that transformers 5 has dropped: it ignores it silently, or cannot load."""
    lines = []
    if config.position_embedding_type != "absolute":
        lines.append("transformers 5 has no relative positions: it ignores their tables and gives wrong results.")
    if config.pruned_heads:
        lines.append("transformers 5 has no pruned heads: it cannot load the narrower layers.")
    return [f"{line} Version 4 has them.\n" for line in lines]


def _training(card: Mapping[str, Any] | str | None) -> str:
    return card.strip() + "\n" if isinstance(card, str) else table(card or {})


_LOADING = {
    "hf": """With transformers (PyTorch), `DIR` being this folder:

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = {architecture}.from_pretrained("DIR"{without})
```
""",
    "sentence-transformers": """With sentence-transformers (PyTorch), `DIR` being this folder:

```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("DIR").encode(["A text.", "Another."])
```
""",
    "tf1": """Google's scripts take it with `--{kind}_config_file`, {vocabulary} and
`--init_checkpoint=DIR/bert_model.ckpt`, `DIR` being this folder.
""",
    "onnx": """With onnxruntime, `DIR` being this folder:

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("DIR/onnx/model.onnx")
tokenizer = Tokenizer.from_file("DIR/tokenizer.json")
texts = [tokenizer.encode("A text.")]
arrays = {{
    "input_ids": np.array([text.ids for text in texts]),
    "attention_mask": np.array([text.attention_mask for text in texts]),
    "token_type_ids": np.array([text.type_ids for text in texts]),
}}
wanted = [node.name for node in session.get_inputs()]
outputs = session.run(None, {{name: arrays[name]{choices} for name in wanted}})
```

optimum (`ORTModel...`), sentence-transformers (`backend="onnx"`), transformers.js and OpenVINO read this folder too.
Inputs are int64{axes}, any number of rows, any length that the model has positions for; outputs are float32.
""",
}
_OURS = """With bert_jax (JAX):

```python
import bert_jax

config, params, tokenizer, report = bert_jax.load("DIR")
```
"""


def card_of_published(text: str, target: HubId) -> str:
    """A card of ours with the name and the branch of the published model where it says DIR; other text unchanged."""
    text = text.replace(", `DIR` being this folder", "").replace('bert_jax.load("DIR")', f'bert_jax.load("{target}")')
    branch = "" if target.revision == DEFAULT_REVISION else f', revision="{target.revision}"'
    return text.replace('"DIR"', f'"{target.repo}"{branch}')
