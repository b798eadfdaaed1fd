"""Tokens and text: tokenizer, chat template, detokenizer, stop strings."""
