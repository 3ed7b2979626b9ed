"""The command line: one file per verb, or per pair of verbs that share most of their code.

Each file has the verb's arguments, what it does and how it prints results. `verbs.py` lists the files.
"""
