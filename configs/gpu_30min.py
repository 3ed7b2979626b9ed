r"""A BERT of 12 layers, 384 wide, that learns grammar: from 150 MB of text and half an hour of one large GPU.

Command:   python -m train.prepare wiki-en-0*.jsonl.zst --output data/all --vocab-size 16000 --uncased \
               --objective none --rows sentences --twice 0.2 --max-seq-length 64
           python -m train.prepare wiki-en-0*.jsonl.zst --output data/plain --vocab data/all --sentences plain \
               --objective none --rows sentences --twice 0.2 --max-seq-length 64
           python -m train.pretrain configs/gpu_30min.py data=data/plain:0.3,data/all:0.7 run=runs/gpu
           docs/prepare.md says what the files wiki-en-0* are
Hardware:  one GPU of the class of an H100
Time:      28 minutes, compiling and export included: `stop_after` ends the run in time on any GPU
Expected:  not run so long. With stop_after=410s on an H200: BLiMP 71.1 % (67,000 pairs), one seed; 2.83 nats per
           held-out masked token (unigram 7.25), 54.8 % right, which doubled sentences make easier than others; 371
           million positions at 1.08 million a second

30 % of the rows are of plain sentences, and no token that is to be predicted stays in sight (docs/recipes.md). A fifth
of the examples are a sentence and itself, each masked alone. In the run above both were whole, and the model learned to
copy what stands at the same place, and not to compare two sentences; now one lacks some of its end and one some of its
beginning. In 28 minutes it reads all of its text some 30 times; whether dropout helps such a model then is not known.
"""

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=6,
            intermediate_size=1536,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            dtype="bfloat16",
        ),
        start=StartConfig(range="width", positions="fourier", heads=((0, -1, 1),)),
        optimizer=OptimizerConfig(
            name="muon",
            muon_products="bfloat16",
            learning_rate=2e-3,
            warmup_steps=400,
            schedule="stable",
            decay_share=0.25,
            decay_shape="linear",
            b2=0.98,
        ),
        # 1,056 rows, which 1.94 examples share on average. The steps are the most: stop_after ends the run.
        phases=(Phase(length=64, batch=2_048, steps=26_000, mask=0.3),),
        masking=MaskingConfig(corruption=(1.0, 0.0, 0.0)),
        text_options=TextConfig(vocab_size=16_000, objective="none", rows="sentences", twice=0.2),
        packing="yes",
        packed=((64, 1.94),),  # of these two directories; a run counts its own
        stop_after="28m",
        eval_every=1_000,
        eval_batches=4,
        save_every=2_000,
    )
