"""A BERT-tiny from 150 MB of text and half an hour of one CPU core.

Command:   python -m train.pretrain configs/hour.py text='wiki-en-0*.jsonl.zst' run=runs/hour
Hardware:  one CPU core with bfloat16 instructions
Time:      26 CPU minutes of an AMD EPYC (Zen 4), evaluations included; preparing takes 1 minute more
Expected:  3.62 nats per held-out masked token; 3.638 and 3.646 on held-out rows of whole sentences (unigram 7.10), 37.3
           and 37.2 % right; BLiMP 57.4 and 57.6 % (20,100 pairs), two seeds; docs/recipes.md

Two layers, 128 wide, on rows of 64 tokens without holes and 8,000 pieces. Heads of layer 0 start by looking at the
neighbouring tokens, Muon updates the matrices, 30 % of the tokens are masked and in the end 15 %, and the rate stays up
before it falls to zero over the last 40 % of the steps: docs/recipes.md says what each of these gained.
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
            schedule="stable",
            decay_share=0.4,
            b2_half_life=140_000,  # in tokens: another batch keeps it
        ),
        phases=(Phase(length=64, batch=64, steps=6_850, mask=0.3), Phase(length=64, batch=64, steps=1_200, mask=0.15)),
        text_options=TextConfig(vocab_size=8_000, objective="none", rows="blocks"),
        packing="no",
        eval_every=500,
        save_every=500,
    )
