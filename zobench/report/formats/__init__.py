"""Output formats of sheets: one module each, with one function ``write``."""
