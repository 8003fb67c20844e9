"""What a step reads: batches of token ids, and where they come from. Tasks are described without torch."""
