"""A BERT of 4 layers, 256 wide, from 150 MB of text and two hours of one CPU core.

Command:   python -m train.pretrain configs/two_hours.py text='wiki-en-0*.jsonl.zst' run=runs/two-hours
Hardware:  one CPU core with bfloat16 instructions
Time:      108 CPU minutes, evaluations included; preparing takes 1 minute more
Expected:  3.29 nats per held-out masked token (unigram 6.92), 41 % right, BLiMP 56.5 %, one seed; docs/recipes.md

As configs/hour.py with a model of twice the layers and the width, and batches of 64 rows from the start. 30 % of the
tokens are masked in the first three quarters of the run, 15 % in the last.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=256,
            num_hidden_layers=4,
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
            learning_rate=1.5e-3,
            warmup_share=0.05,
            b2=0.98,
            decay_from="warmup",
        ),
        phases=(Phase(length=64, batch=64, steps=3_900, mask=0.3), Phase(length=64, batch=64, steps=1_300, mask=0.15)),
        text_options=TextConfig(vocab_size=8_000, objective="none", rows="blocks"),
        packing="no",
        eval_every=400,
        save_every=400,
    )
