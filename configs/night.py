"""A BERT of 6 layers from 150 MB of text and a night of a CPU.

Command:   python -m train.pretrain configs/night.py text='wiki-en-0*.jsonl.zst' run=runs/night
Hardware:  two CPU cores with bfloat16 instructions
Time:      not run; about 8 hours of two cores of an AMD EPYC (Zen 4) by `--dry-run`, which says what it takes on yours
Expected:  not run; configs/two_hours.py has the measured figures of 4 such layers after 21 million tokens, of 147 here

As configs/two_hours.py with 6 layers, and 36,000 steps: about four passes over the text.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=256,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            dtype="bfloat16",
        ),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(
            name="muon",
            muon_products="bfloat16",
            learning_rate=1e-3,
            warmup_share=0.05,
            b2=0.98,
            decay_from="warmup",
        ),
        phases=(Phase(length=64, batch=64, steps=27_000, mask=0.3), Phase(length=64, batch=64, steps=9_000, mask=0.15)),
        text_options=TextConfig(vocab_size=8_000, objective="none", rows="blocks"),
        packing="no",
        eval_every=1_000,
        save_every=500,
    )
