"""BERT-mini (4 layers, 256 wide) on your own text.

Command:   python -m train.pretrain configs/mini.py data=data/ko run=runs/ko
Hardware:  CPU cores for a day, a small GPU for hours
Time:      about 18 hours on two cores (AMD EPYC): 50,000 steps of 64 x 128 tokens; --dry-run says it for yours
Expected:  better than configs/tiny.py on the same text. The published BERT-mini, on far more text, scores 65.8 on GLUE
           (google-research/bert README). It has 6.39 nats after 244 steps on English Wikipedia (16,000 pieces, unigram
           7.30)

Heads wired and dropout from step 250 on as in configs/tiny.py, and Muon: with wiring, Muon and 30 % masks these layers
have 3.29 nats after 21 million tokens of rows of 64, as published 5.37 (docs/recipes.md, one seed). With `init=` a
model starts as its source is.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("mini", dtype="bfloat16"),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(name="muon", learning_rate=1.5e-3, warmup_steps=200, b2=0.98),
        phases=(Phase(length=128, batch=64, steps=250, dropout=0.0), Phase(length=128, batch=64, steps=49_750)),
        text_options=TextConfig(vocab_size=30_000),
    )
