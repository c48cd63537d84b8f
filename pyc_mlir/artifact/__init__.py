"""The results of a compile as data: manifest, signature, reports. Needs no device."""
