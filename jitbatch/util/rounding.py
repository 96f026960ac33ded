"""Rounded sizes, so that sizes repeat from batch to batch."""


def round_up(count: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... not below `count`; less than a third of it is padding."""
    if count <= 2:
        return max(count, 1)
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
