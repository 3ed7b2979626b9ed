"""Files to documents to sentences.

Compression and damaged files are handled here.
"""
