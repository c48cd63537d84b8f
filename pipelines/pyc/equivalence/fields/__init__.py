"""Programs to compare, and how they run on names of elements and over finite fields."""
