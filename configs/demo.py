"""A small BERT from the English prose inside Python's own standard library: the demo.

Command:   make demo
Hardware:  2 CPU cores
Time:      about 4 CPU minutes of an AMD EPYC (Zen 4), vocabulary and examples included
Expected:  on held-out documents a masked-LM loss of about 3.9 nats (unigram baseline 6.3) and 33 % of the masked tokens
           right (most frequent token 5 %), next sentence 67 to 75 % (majority 56 %). The text, and with it the figures,
           differ a little between versions of Python
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            dtype="bfloat16",
        ),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(
            name="muon", learning_rate=2e-3, warmup_steps=140, b2=0.98, schedule="stable", decay_share=0.2
        ),
        phases=(Phase(length=64, batch=64, steps=1400),),
        text_options=TextConfig(vocab_size=4000, held_out=0.05, dupe_factor=5),
        log_every=25,
        eval_every=350,
        eval_batches=100,
        save_every=350,
        keep=2,
    )
