"""Plain data and the two ports (``Clock``, ``Runner``). No I/O, no arithmetic on tensors."""
