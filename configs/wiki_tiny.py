"""BERT-tiny (2 layers, 128 wide) on 150 MB of English Wikipedia: a whole curve in two and a half hours of CPU time.

Command:   python -m train.prepare wiki-en-0*.jsonl.zst --output data/wiki-en --vocab-size 30000 \\
               --character-coverage 1 --uncased
           python -m train.pretrain configs/wiki_tiny.py data=data/wiki-en run=runs/wiki
           docs/prepare.md says what the files wiki-en-0* are
Hardware:  2 CPU cores
Time:      about 75 minutes on two free cores; 16,000 steps of 64 x 128 tokens, nearly four passes over the text
Expected:  5.04 nats per held-out masked token (unigram 7.37), 27 % right, next sentence 90 %; "Wikipedia"
           in benchmarks/results/learning.md has the curve and the steps at which it leaves its two plateaus.
           No dropout: so small a model does not overfit so much text
"""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("tiny", dtype="bfloat16", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=800, b2=0.98),
        phases=(Phase(length=128, batch=64, steps=16_000),),
        eval_every=500,
        save_every=500,
    )
