"""The command line: the verbs are in `verbs/`, and what they share is here: arguments, texts, results, parts."""
