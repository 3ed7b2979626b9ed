"""A small BERT from the English prose inside Python's own standard library: the demo.

Command:   make demo
Hardware:  2 CPU cores
Time:      under 4 minutes, vocabulary and examples included
Expected:  masked-LM loss on held-out documents well below the unigram baseline's (about 6.1 nats)
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=192,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_size=768,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            dtype="bfloat16",
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=150, b2=0.98, decay_from="warmup"),
        phases=(Phase(length=64, batch=64, steps=1500),),
        text_options=TextConfig(vocab_size=4000, held_out=0.05, dupe_factor=5),
        log_every=25,
        eval_every=250,
        eval_batches=20,
        save_every=500,
        keep=2,
    )
