"""The order of uploads, computes and offloads of a step, and the lanes that execute it."""
