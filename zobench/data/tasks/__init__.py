"""Tasks: labelled examples as prompts and candidates, split, encoded and batched (docs/design/METHODS.md, "Tasks")."""
