"""The model of a run that starts from nothing, fitted to its data: vocabulary, ids of special tokens, objective."""

from typing import Any

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.names.parameters import family_of
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import DataSource, head_for


def fitted_model(config: PretrainConfig, data: DataSource, given: frozenset[str]) -> BertConfig:
    """`config.model` with what follows from the data's tokenizer and was not given on the command line.

    RoBERTa's positions follow from `pad_token_id`, so it must be the tokenizer's; the other families keep theirs for
    whoever reads the exported config.

    Raises:
        UserError: the family has no model for the data's objective, or too few positions for a phase.
    """
    follows: dict[str, Any] = {"vocab_size": data.vocab_size}
    if data.tokenizer is not None:
        follows |= _special_ids(data.tokenizer, config.model)
    model = config.model.replace(**{name: v for name, v in follows.items() if f"model.{name}" not in given})
    _check_objective(model, data)
    longest = max(phase.length for phase in config.phases)
    if longest > model.longest_input:
        raise UserError(
            f"phases: length {longest} is more than the {model.longest_input} positions that "
            f"model.max_position_embeddings = {model.max_position_embeddings} leaves a {model.model_type} whose "
            f"[PAD] is {model.pad_token_id}; raise the one or lower the other"
        )
    return model


def _special_ids(tokenizer: Tokenizer, model: BertConfig) -> dict[str, int]:
    ids = {"pad_token_id": tokenizer.pad_token_id} if tokenizer.has_special("pad") else {}
    if model.family in ("roberta", "albert"):  # transformers' classes of the others have no such fields
        ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    return ids


def _check_objective(model: BertConfig, data: DataSource) -> None:
    if data.objective == "none":
        return
    if head_for(data) not in family_of(model).heads or model.type_vocab_size < 2:
        raise UserError(
            f"model.model_type: {model.model_type} with {model.type_vocab_size} token types is not trained with "
            f"sentence pairs; prepare the text with --objective none, not {data.objective} (data=random: "
            "text_options.objective=none)"
        )
