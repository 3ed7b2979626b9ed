r"""A BERT of 6 layers, 256 wide, that learns grammar: from 150 MB of text and four hours of one CPU core.

Command:   python -m train.prepare wiki-en-0*.jsonl.zst --output data/plain --vocab-size 16000 --uncased \
               --sentences plain --objective none --rows sentences --max-seq-length 64
           python -m train.prepare wiki-en-0*.jsonl.zst --output data/all --vocab data/plain --objective none \
               --rows sentences --max-seq-length 64
           python -m train.pretrain configs/night.py data=data/plain:0.5,data/all:0.5 run=runs/night
           docs/prepare.md says what the files wiki-en-0* are
Hardware:  one CPU core with bfloat16 instructions
Time:      3.8 CPU hours of an AMD EPYC (Zen 4), evaluations included; two hours and 19 minutes on both of its cores
Expected:  3.99 nats per held-out masked token (unigram 7.20), 35 % right, one seed (benchmarks/results/grammar.md);
           BLiMP 66.7 % (20,100 pairs), no more than configs/two_hours.py has in half of the time

As configs/two_hours.py, twice as long. Half of the rows are of plain sentences, which are read twice, and half are of
all sentences. The warm-up is as short as there, so that the plateau ends as early.
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
            Phase(length=64, batch=146, steps=8_300, mask=0.3),
            Phase(length=64, batch=146, steps=1_700, mask=0.15),
        ),
        masking=MaskingConfig(corruption=(1.0, 0.0, 0.0)),
        text_options=TextConfig(vocab_size=16_000, objective="none", rows="sentences"),
        packing="yes",
        packed=((64, 2.3),),  # of these two directories; a run counts its own
        eval_every=1_000,
        save_every=500,
    )
