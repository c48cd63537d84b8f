"""Programs in service: targets, swaps of builds, comparisons in the background, telemetry."""
