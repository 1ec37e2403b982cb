"""Text on the wire side: tokenizers, chat templates, incremental detokenizing, stop strings."""
