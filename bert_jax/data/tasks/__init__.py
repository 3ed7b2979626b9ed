"""The files of fine-tuning tasks, as published and as a user's own tables, and their examples as rows of a model.

There is one reader for each file format.
"""
