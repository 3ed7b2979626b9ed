"""A BERT-tiny from 150 MB of text and half an hour of one CPU core.

Command:   python -m train.pretrain configs/hour.py text='wiki-en-0*.jsonl.zst' run=runs/hour
Hardware:  one CPU core with bfloat16 instructions
Time:      15 CPU minutes of an AMD EPYC (Zen 5), 29 of a Zen 4, all included; preparing takes 1 minute more
Expected:  3.70 nats per held-out masked token (unigram 7.07), 37.4 % right, BLiMP 56.5 %, one seed; docs/recipes.md

Two layers, 128 wide, on rows of 64 tokens without holes and 8,000 pieces. Heads of layer 0 start by looking at the
neighbouring tokens, Muon updates the matrices, and batches grow from 16 rows to 64: docs/recipes.md says what each of
these gained.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("tiny", dtype="bfloat16", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(
            name="muon",
            learning_rate=2e-3,
            warmup_share=0.05,
            b2_half_life=140_000,
            decay_from="warmup",
        ),
        phases=(  # an eighth of the tokens, a quarter, almost a half, and 15 % masks for the rest
            Phase(length=64, batch=16, steps=4_000, mask=0.3),
            Phase(length=64, batch=32, steps=4_000, mask=0.3, rate=1.4),
            Phase(length=64, batch=64, steps=3_850, mask=0.3, rate=2.0),
            Phase(length=64, batch=64, steps=1_200, mask=0.15, rate=2.0),
        ),
        text_options=TextConfig(vocab_size=8_000, objective="none", rows="blocks"),
        packing="no",
        eval_every=800,
        save_every=800,
    )
