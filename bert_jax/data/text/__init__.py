"""Files to documents to sentences.

Every kind of compression and damage is dealt with here.
"""
