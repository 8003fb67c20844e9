"""The papers' programs, MeZO and ZO2 as published, on a virtual clock: for the papers' own columns, and to hold the
predictor against what they report. zobench's engine is another program (:mod:`zobench.cost.gpu`). No torch."""
