"""What a compile leaves behind, as data: manifest, signature, reports. Needs no device."""
