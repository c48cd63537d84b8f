"""Passes and pipelines: options, registry, pass manager, printing, reports."""
