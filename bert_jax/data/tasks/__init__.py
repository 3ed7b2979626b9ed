"""The files of fine-tuning tasks, as published and in a user's own tables, and their examples as rows of a model.

A reader a form of file.
"""
