r"""A BERT of 6 layers, 256 wide, that learns grammar: from 150 MB of text and eight hours of one CPU core.

Command:   python -m train.prepare wiki-en-0*.jsonl.zst --output data/plain --vocab-size 16000 --uncased \
               --sentences plain --objective none --rows sentences --max-seq-length 64
           python -m train.prepare wiki-en-0*.jsonl.zst --output data/all --vocab data/plain --objective none \
               --rows sentences --max-seq-length 64
           python -m train.pretrain configs/night.py data=data/plain:0.5,data/all:0.5 run=runs/night
           docs/prepare.md says what the files wiki-en-0* are
Hardware:  one CPU core with bfloat16 instructions
Time:      not run to its end yet; eight hours of an AMD EPYC (Zen 4) by its first steps
Expected:  not run to its end yet; configs/two_hours.py has the measured figures of a quarter of the tokens

As configs/two_hours.py, four times as long. Half of the rows are of plain sentences, which are read some four times,
and half are of all sentences. The warm-up is as short as there, so that the plateau ends as early.
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
            warmup_steps=300,
            schedule="stable",
            decay_share=0.4,
            b2_half_life=140_000,
        ),
        phases=(  # of 64 rows: about 2.3 sentences share a row of 64 positions
            Phase(length=64, batch=146, steps=16_600, mask=0.3),
            Phase(length=64, batch=146, steps=3_400, mask=0.15),
        ),
        masking=MaskingConfig(corruption=(1.0, 0.0, 0.0)),
        text_options=TextConfig(vocab_size=16_000, objective="none", rows="sentences"),
        packing="yes",
        packed=((64, 2.3),),  # of these two directories; a run counts its own
        eval_every=1_000,
        save_every=500,
    )
