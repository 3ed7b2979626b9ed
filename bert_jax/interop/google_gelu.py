"""Which GELU a Google checkpoint was trained with: its config.json says "gelu" for either.

Google's first release (2018-10-31) computed 0.5 x (1 + erf(x / sqrt(2))); since 2019-02-07 (commit bee6030) its
modeling.py computes the approximation with tanh, for the same checkpoints. ALBERT's code always had tanh. transformers
reads every "gelu" as erf. The two differ by at most 4.7e-4. docs/tf1.md says what to choose.
"""

from typing import Literal

from bert_jax.errors import UserError

Gelu = Literal["erf", "tanh"]

_ACTS = {"erf": "gelu", "tanh": "gelu_new"}


def google_hidden_act(hidden_act: str, gelu: Gelu | None = None) -> tuple[str, str]:
    """The `hidden_act` to use for a Google checkpoint, and a line that says which one it is and why.

    Args:
        hidden_act: of its bert_config.json or albert_config.json.
        gelu: "erf" or "tanh": compute "gelu" so; None: as the config says, where "gelu" means erf, as in transformers.

    Returns:
        a `BertConfig.hidden_act` ("gelu" is erf, "gelu_new" is tanh); the line, empty where there is no choice.

    Raises:
        UserError: a choice for a config that says another activation, or no such choice.
    """
    if gelu is not None and gelu not in _ACTS:
        raise UserError(f'gelu={gelu!r}: expected "erf" or "tanh"')
    if hidden_act != "gelu":
        if gelu is not None:
            raise UserError(f"gelu={gelu!r}: the config says hidden_act={hidden_act!r}, which leaves no choice")
        return hidden_act, ""
    chosen = "as transformers reads it" if gelu is None else "as asked for"
    return _ACTS[gelu or "erf"], f'hidden_act "gelu" is computed with {gelu or "erf"}, {chosen}'
