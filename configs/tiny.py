"""BERT-tiny (2 layers, 128 wide) on your own text: the first run to make.

Command:   python -m train.pretrain configs/tiny.py text='books/*.txt' run=runs/books
Hardware:  2 CPU cores, or anything faster
Time:      about 2 hours on two cores (AMD EPYC): 20,000 steps of 64 x 128 tokens; --dry-run says it for yours
Expected:  a masked-LM loss that drops below the unigram baseline (printed beside it) in the first few hundred steps:
           6.53 nats after 244 steps on English Wikipedia with 16,000 pieces, unigram 7.30, and 5.62 after 732.
           The same start and optimizer without dropout have 4.540 nats after 4,900 steps on English Wikipedia with
           30,000 pieces (docs/recipes.md); this config to its end was not run. The published BERT-tiny, trained on far
           more text, scores 64.2 on GLUE (google-research/bert README)

Two heads of layer 0 start by looking at the neighbouring tokens, and Muon updates the matrices: docs/recipes.md says
what each gained. Dropout begins after 250 steps: it delays what is learnt first, and a text that is read more than some
25 times needs it. With `init=` a model starts as its source is.
"""

from bert_jax.config import BertConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig.preset("tiny", dtype="bfloat16"),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(name="muon", learning_rate=2e-3, warmup_steps=100, b2=0.98),
        phases=(Phase(length=128, batch=64, steps=250, dropout=0.0), Phase(length=128, batch=64, steps=19_750)),
        text_options=TextConfig(vocab_size=16_000),
    )
