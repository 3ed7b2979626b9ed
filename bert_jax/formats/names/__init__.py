"""The names of parameters in Hugging Face's files and in our tree.

There is one table per family.
"""
