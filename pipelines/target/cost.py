"""The cost of a choice, in the four currencies that all layers share."""

from dataclasses import dataclass, field

# What a dynamic dimension is taken for where alternatives are ranked. Nothing is promised by it.
NOMINAL_DIMENSION = 64


@dataclass(frozen=True, order=True)
class Cost:
    """An estimate or a measurement: `seconds`, then bytes of workspace, constants and traffic.

    Costs order by seconds, then by the bytes in this order; they add component by component.
    `flops`, arithmetic operations, explain the seconds: they order nothing.
    """

    seconds: float = 0.0
    workspace_bytes: int = 0
    constant_bytes: int = 0
    traffic_bytes: int = 0
    flops: float = field(default=0.0, compare=False)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.seconds + other.seconds,
            self.workspace_bytes + other.workspace_bytes,
            self.constant_bytes + other.constant_bytes,
            self.traffic_bytes + other.traffic_bytes,
            self.flops + other.flops,
        )
