"""What ``ramet bench`` measures in this process, and what it holds the figures against: the machine's own limits."""
