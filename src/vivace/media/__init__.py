"""Bytes and text to arrays and back: tokenizers, detokenizing, chat templates, images, audio, video."""
