"""The batches of token ids that steps read, and where they come from. Tasks are described without torch."""
