"""A BERT of 6 layers, 256 wide, that learns grammar: from 150 MB of text and a night of a CPU.

Command:   python -m train.pretrain configs/night.py text='wiki-en-0*.jsonl.zst' run=runs/night
           docs/prepare.md says what the files wiki-en-0* are
Hardware:  two CPU cores with bfloat16 instructions
Time:      not run; 6.6 hours of two cores of an AMD EPYC (Zen 4) by `--dry-run`, which says it of yours, and 12 of one
           by the step of configs/two_hours.py
Expected:  not run; configs/two_hours.py has the measured figures of a sixth of the tokens

As configs/two_hours.py, with all sentences in place of the plain ones: 3.7 passes over the text, where the plain ones
would be read some 16 times. Which is better over so many steps is not known.
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
            b2_half_life=140_000,
        ),
        phases=(  # of 64 rows: two sentences share a row of 64 positions
            Phase(length=64, batch=128, steps=26_000, mask=0.3),
            Phase(length=64, batch=128, steps=5_500, mask=0.15),
        ),
        masking=MaskingConfig(corruption=(1.0, 0.0, 0.0)),
        text_options=TextConfig(vocab_size=16_000, objective="none", rows="sentences"),
        packing="yes",
        packed=((64, 2.0),),  # about; a run counts its own
        eval_every=1_000,
        save_every=500,
    )
