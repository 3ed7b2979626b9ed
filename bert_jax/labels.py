"""The label of what has no loss: padding, and tokens that carry no label. torch and transformers ignore the same."""

IGNORED_LABEL = -100
