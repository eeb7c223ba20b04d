"""Ramet: an LLM serving engine whose KV cache is a tree."""
