"""The parts that importers of graphs share: builders, symbolic sizes, folding, graph breaks."""
