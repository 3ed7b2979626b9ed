"""The model card: the README.md of an exported folder. It says what the model is, and how it was trained."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats.names.parameters import architecture_of

_FRONT_MATTER = """---
{library}{task}tags:
- {model_type}
- jax
- bert_jax
---
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
_WORDS = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "camembert": "CamemBERT",
    "albert": "ALBERT",
    "distilbert": "DistilBERT",
}


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
        form: the folder's form: "hf", "sentence-transformers" or "tf1".
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
    )
    purpose = "Google's TensorFlow code" if form == "tf1" else f"`{architecture}`"
    without = ", add_pooling_layer=False" if head == "encoder-no-pooler" and config.family != "distilbert" else ""
    return "\n".join(
        [
            front,
            f"# {name}\n",
            f"A {_WORDS[config.model_type]} ({size}), written by bert_jax for {purpose}.\n",
            "## How it was trained\n",
            _training(card),
            "## How to load it\n",
            _LOADING[form].format(architecture=architecture, without=without),
            *_warnings(config),
            _OURS,
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
    if isinstance(card, str):
        return card.strip() + "\n"
    if not card:
        return "Not recorded.\n"
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in card.items()]
    return "\n".join(["| what | value |", "|---|---|", *rows, ""])


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def training_facts(run: str | os.PathLike[str], step: int | None) -> dict[str, Any]:
    """The facts that a run directory records about its training, for a card; no paths.

    Args:
        run: the run directory; config.json, metrics.jsonl and environment.json are read if they exist.
        step: the exported step. The facts include the last evaluation up to it; None: the last of all.
    """
    folder = Path(run)
    config = _object(folder / "config.json")
    facts: dict[str, Any] = {} if step is None else {"step": f"{step:,}"}
    phases = config.get("phases")
    if isinstance(phases, list):
        facts["phases (sequence length, batch, steps)"] = "; ".join(", ".join(map(str, phase)) for phase in phases)
    for section, names in (("optimizer", _OPTIMIZER), ("model", ("dtype",)), ("", ("seed",))):
        fields = config.get(section, {}) if section else config
        if isinstance(fields, Mapping):
            facts |= {f"{section} {name}".strip(): fields[name] for name in names if fields.get(name) is not None}
    evaluations = [row for row in _rows(folder / "metrics.jsonl") if row.get("kind") == "eval"]
    evaluations = [row for row in evaluations if step is None or row.get("step", 0) <= step]
    if evaluations:
        last = evaluations[-1]
        facts |= {
            f"held-out {name} (step {last['step']:,})": f"{value:.4g}"
            for name, value in last.items()
            if isinstance(value, float) and name not in ("seconds", "cpu_seconds")
        }
    environment = _object(folder / "environment.json")
    if environment.get("init"):
        facts["started from"] = environment["init"]
    if "device_kind" in environment:
        facts["devices"] = f"{environment.get('devices', 1)} {environment['device_kind']}"
    return facts


_OPTIMIZER = ("name", "learning_rate", "warmup_steps", "schedule", "weight_decay")


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, UserError):
        return {}


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:  # a killed run leaves its last line incomplete
            continue
    return rows


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
    "tf1": """Google's scripts take it with `--bert_config_file` (ALBERT: `--albert_config_file`), `--vocab_file` and
`--init_checkpoint=DIR/bert_model.ckpt`, `DIR` being this folder.
""",
}
_OURS = """With bert_jax (JAX):

```python
import bert_jax

config, params, tokenizer, report = bert_jax.load("DIR")
```
"""
