"""A BERT of 6 layers, 256 wide, that learns grammar: from 150 MB of text and two hours of one CPU core.

Command:   python -m train.pretrain configs/two_hours.py text='wiki-en-0*.jsonl.zst' run=runs/two-hours
           docs/prepare.md says what the files wiki-en-0* are
Hardware:  one CPU core with bfloat16 instructions
Time:      120 CPU minutes of an AMD EPYC (Zen 4), evaluations included; preparing takes a minute more
Expected:  BLiMP 67.0 and 66.6 % (20,100 pairs), 4.08 and 4.10 nats per held-out masked token (unigram 7.17), 34 %
           right, two seeds (docs/recipes.md)

The examples are single sentences of plain words (a quarter of the text), and no token that is to be predicted stays in
sight: both teach a small model more grammar than a lower loss does (docs/recipes.md). 30 % of the tokens are masked and
in the end 15 %, and the rate stays up before it falls to zero over the last 40 % of the steps. For pairs of sentences
and longer texts, train on blocks, as configs/hour.py does.
"""

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
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
            learning_rate=1.5e-3,
            warmup_share=0.05,
            schedule="stable",
            decay_share=0.4,
            b2_half_life=140_000,  # in tokens: another batch keeps it
        ),
        phases=(  # of 64 rows: about 2.6 sentences share a row of 64 positions
            Phase(length=64, batch=168, steps=4_250, mask=0.3),
            Phase(length=64, batch=168, steps=900, mask=0.15),
        ),
        masking=MaskingConfig(corruption=(1.0, 0.0, 0.0)),
        text_options=TextConfig(vocab_size=16_000, objective="none", rows="sentences", sentences="plain"),
        packing="yes",
        packed=((64, 2.62),),  # of this text; a run counts its own
        eval_every=500,
        save_every=500,
    )
