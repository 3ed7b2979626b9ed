"""The model card: README.md of an exported folder, for whoever finds it without knowing where it came from."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config import BertConfig
from bert_jax.interop.names import find_head

_FRONT_MATTER = """---
library_name: transformers
{task}tags:
- bert
- jax
- bert_jax
---
"""
_TASKS = {"pretraining": "fill-mask", "mlm": "fill-mask", "encoder": "feature-extraction"}


def model_card(config: BertConfig, head: str, card: Mapping[str, Any] | str | None, *, name: str) -> str:
    """README.md's text: what it is, how it was trained (as far as `card` says), how to load it.

    Args:
        config: the architecture.
        head: which parameters the folder has.
        card: facts, printed as a table in their order; or Markdown that is taken as it is; None: nothing is claimed.
        name: the title.
    """
    architecture = find_head(head).architecture
    size = (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {config.num_attention_heads} heads, "
        f"feed-forward {config.intermediate_size}, {config.vocab_size} tokens, at most "
        f"{config.max_position_embeddings} positions"
    )
    return "\n".join(
        [
            _FRONT_MATTER.format(task=f"pipeline_tag: {_TASKS[head]}\n" if head in _TASKS else ""),
            f"# {name}\n",
            f"A BERT ({size}), written by bert_jax for `{architecture}`.\n",
            "## How it was trained\n",
            _training(card),
            "## How to load it\n",
            _LOADING.format(architecture=architecture),
        ]
    )


def _training(card: Mapping[str, Any] | str | None) -> str:
    if isinstance(card, str):
        return card.strip() + "\n"
    if not card:
        return "Not recorded.\n"
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in card.items()]
    return "\n".join(["| what | value |", "|---|---|", *rows, ""])


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


_LOADING = """With transformers (PyTorch), `DIR` being this folder:

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = {architecture}.from_pretrained("DIR")
```

With bert_jax (JAX):

```python
import bert_jax

config, params, tokenizer, report = bert_jax.load("DIR")
```
"""
