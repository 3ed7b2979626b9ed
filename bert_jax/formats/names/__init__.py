"""What a parameter is called in Hugging Face's files and in our tree.

One table a family.
"""
