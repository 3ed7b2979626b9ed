"""The tasks that a model can be fine-tuned on, one file a kind.

A new task is a line in `table.py`.
"""
