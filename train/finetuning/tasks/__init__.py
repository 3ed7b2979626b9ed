"""The tasks that a model can be fine-tuned on, one file per kind.

A new task is an entry in `table.py`.
"""
