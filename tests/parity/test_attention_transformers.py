"""attend against transformers' eager attention on the same exported folder: every layer and head of every family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bert_jax.inference.attention.maps import Attend
from tests.inference.attention.attention_folders import FAMILIES, export

pytestmark = pytest.mark.parity

TEXTS = [("hello world held.", None), ("hello, world", "held o'hello"), ("", None), ("o " * 6, "held")]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_weights_are_transformers_own(tmp_path: Path, model_type: str):
    folder = export(tmp_path, "mlm", model_type, num_hidden_layers=3, num_attention_heads=4)
    look = Attend(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    for text, pair in TEXTS:
        maps = look(text, pair)
        inputs = tokenizer(text, pair, return_tensors="pt")
        with torch.no_grad():
            theirs = model(**inputs, output_attentions=True).attentions
        assert maps.tokens == tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        assert maps.attentions.shape[:2] == (3, 4)
        np.testing.assert_allclose(maps.attentions, torch.cat(theirs).numpy(), atol=1e-5)
        np.testing.assert_allclose(maps.attentions.sum(axis=-1), 1, atol=1e-5)
        sides = inputs.sequence_ids(0)
        assert maps.special.tolist() == [segment is None for segment in sides]
        assert all(ours == segment for ours, segment in zip(maps.segments, sides, strict=True) if segment is not None)
