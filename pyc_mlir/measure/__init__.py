"""Measurements: environment fingerprints, stored records, interleaved rounds."""
