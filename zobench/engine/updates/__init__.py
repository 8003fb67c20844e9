"""Updates of the weights: the rules, what is pending, and replaying a journal."""
