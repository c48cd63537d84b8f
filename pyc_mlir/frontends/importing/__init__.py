"""What importers of graphs share: builders, symbolic sizes, shapes, folding, graph breaks."""
