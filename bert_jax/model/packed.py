"""Several sequences in a row: what keeps them apart in the model (https://arxiv.org/abs/2107.02027, section 3.2)."""

from jax import Array

from bert_jax.config import BertConfig


def packed_inputs(config: BertConfig, sequence_ids_BL: Array, position_ids_BL: Array) -> dict[str, Array]:
    """The arguments of `Bert` with which each sequence of a row has the outputs that it has alone.

    Each token attends to those of its own sequence, and positions restart in each sequence. RoBERTa's start at pad + 1,
    as in `embeddings.positions_of`.

    Args:
        config: of the model.
        sequence_ids_BL: integer [B, L], 1, 2 ... for the sequences of a row, 0 for padding.
        position_ids_BL: integer [B, L], counted from 0 in each sequence.

    Returns:
        sequence_ids and position_ids, integer [B, L].
    """
    first = config.pad_token_id + 1 if config.family == "roberta" else 0
    return {"sequence_ids": sequence_ids_BL, "position_ids": position_ids_BL + first}
