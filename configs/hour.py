"""The best BERT from 150 MB of text and one hour of one CPU core.

Command:   python -m train.pretrain configs/hour.py text='wiki-en-0*.jsonl.zst' run=runs/hour
Hardware:  one CPU core with bfloat16 instructions; a second one halves the time
Time:      35 to 38 CPU minutes, evaluations and export included; preparing takes 1 minute more
Expected:  3.53 and 3.54 nats per held-out masked token by two seeds (unigram 6.92), 38 % right; docs/recipes.md

Two layers, 128 wide, on rows of 64 tokens without holes and 8,000 pieces. Heads of layer 0 start by looking at the
neighbouring tokens, and Muon updates the matrices: docs/recipes.md says what each of these gained.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("tiny", dtype="bfloat16", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(name="muon", learning_rate=2e-3, warmup_share=0.05, b2=0.98, decay_from="warmup"),
        phases=(Phase(length=64, batch=64, steps=8_000),),
        text_options=TextConfig(vocab_size=8_000, objective="none", rows="blocks"),
        packing="no",
        eval_every=500,
        save_every=500,
    )
