"""Host facts without a compiler: versions, environment overrides, temporary folders, checksums."""
