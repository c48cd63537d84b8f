"""The pass pyc-chunk: computing regions in parts, so that large intermediates never exist whole."""
