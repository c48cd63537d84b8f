"""The suite `memory`: bytes of a call, mode by mode, against plain IREE and XLA."""
