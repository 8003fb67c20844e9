"""DistZO2: one step shared out over several devices, by perturbation, by data, or both; slices of the transfers."""
