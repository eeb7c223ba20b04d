"""Models: files to a ``Checkpoint``, a ``Checkpoint`` to logits. docs/design/models.md has the map."""
