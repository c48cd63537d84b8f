"""`make demo`: two models on handwritten digits, compiled and run beside plain IREE."""
