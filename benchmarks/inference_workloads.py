"""What benchmarks/inference.py embeds: texts of one length, and real sentences of mixed length."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.text.lines import read_lines
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS

LONGEST = 512  # tokens of the longest text; longer sentences are skipped
FIXED = ("1x16", "1x37", "1x128", "32x128")  # texts x tokens
COMMON = re.findall(
    "[a-z]+", "the of and in to was is for as on with by he at from his that an were are which or it be has"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def fixed_texts(workload: str, tokenizer: Tokenizer) -> list[str]:
    """Texts of exactly so many tokens, [CLS] and [SEP] counted: common words of one token each.

    Args:
        workload: "TEXTSxTOKENS", for example "1x16".
    """
    rows, length = map(int, workload.split("x"))
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(COMMON, length - 2)) for _ in range(rows)]
    assert tokenizer(texts)["input_ids"].shape == (rows, length)
    return texts


def mixed_texts(count: int, corpus: Path, tokenizer: Tokenizer, seed: int = 0) -> list[str]:
    """Sentences of Wikipedia's prose in shuffled order, and one whole paragraph for every hundred of them."""
    sentences: list[str] = []
    paragraphs: list[str] = []
    for _, line in read_lines(corpus):
        for paragraph in json.loads(line)["text"].split("\n\n"):
            paragraphs.append(paragraph)
            sentences += _SENTENCE_END.split(paragraph)
        if len(sentences) > 20 * count:
            break
    rng = np.random.default_rng(seed)
    lengths = tokenizer.encode_flat(paragraphs)[1]
    long = [text for text, length in zip(paragraphs, lengths, strict=True) if 250 < length < LONGEST - 2]
    texts = [sentences[i] for i in rng.choice(len(sentences), count - count // 100, replace=False)]
    texts += [long[i] for i in rng.choice(len(long), count // 100, replace=False)]
    return [texts[i] for i in rng.permutation(len(texts))]


def write_base_shape(folder: Path, tokenizer: Tokenizer, config: BertConfig | None = None) -> Path:
    """Write a model of random weights, a BERT-base by default, as a folder that sentence-transformers reads."""
    from bert_jax.formats.sentence_transformers import write_modules

    config = config or BertConfig.preset("base-uncased")
    params = HEADS["encoder"](config).init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    path = save_pretrained(folder, config, jax.device_get(params), tokenizer, head="encoder")
    write_modules(path, "mean+normalize", config.hidden_size, LONGEST)
    return path


def copy_for_all(model: str, folder: Path) -> Path:
    """Copy a folder and set its truncation to `LONGEST` tokens, so that all contenders read the same part of a text."""
    path = Path(shutil.copytree(model, folder))
    settings = path / "sentence_bert_config.json"
    fields = json.loads(settings.read_text()) if settings.is_file() else {}
    settings.write_text(json.dumps(fields | {"max_seq_length": LONGEST}))
    return path
