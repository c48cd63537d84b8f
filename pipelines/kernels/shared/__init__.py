"""Parts that several kernel families share: register tiles, grids, contractions, epilogues."""
