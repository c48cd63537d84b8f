"""What-if: seconds and bytes of a program under another recipe, without code generation."""
