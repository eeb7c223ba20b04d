"""Computes batches and chooses tokens: the KV memory, the model's forward pass, the sampler."""
