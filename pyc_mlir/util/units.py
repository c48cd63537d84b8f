"""Numbers with readable units: 0.0123 s is ``12.3 ms``, 4718592 B is ``4.5 MiB``."""

_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


SCALES = {"s": _TIME, "B": _BYTES}


def quantity(value: float, unit: str) -> str:
    """`value` with a readable unit: 0.0123 s is ``12.3 ms``, 4718592 B is ``4.5 MiB``."""
    scales = SCALES.get(unit, ((1.0, unit),))
    factor, name = next((s for s in scales if abs(value) >= s[0]), scales[-1])
    scaled = value / factor
    digits = (
        f"{scaled:.0f}" if float(scaled).is_integer() or abs(scaled) >= 1000 else f"{scaled:.3g}"
    )
    return digits + (name if name == "%" else f" {name}")
