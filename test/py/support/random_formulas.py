"""Threefry-2x32-20 and Philox-4x32-10 in Python's own integers, and Random123's known answers."""

MASK = 0xFFFFFFFF
# Of each: counter words, key words, result words (`kat_vectors` of Random123).
THREEFRY = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((MASK, MASK), (MASK, MASK), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
)
PHILOX = (
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def joined(low: int, high: int) -> int:
    """Two words as one ui64."""
    return low | high << 32


def threefry(counter: int, key: int) -> int:
    x, y = counter & MASK, counter >> 32
    first, second = key & MASK, key >> 32
    keys = first, second, first ^ second ^ 0x1BD11BDA
    for turn in range(20):
        if turn % 4 == 0:
            x, y = x + keys[turn // 4 % 3], y + keys[(turn // 4 + 1) % 3] + turn // 4
        count = (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]
        x, y = (x + y) & MASK, y & MASK
        y = (y << count | y >> (32 - count)) & MASK ^ x
    return joined((x + keys[2]) & MASK, (y + keys[0] + 5) & MASK)


def philox(low: int, high: int, key: int) -> int:
    x = [low & MASK, low >> 32, high & MASK, high >> 32]
    for turn in range(10):
        a, c = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        left = ((key & MASK) + turn * 0x9E3779B9) & MASK
        right = ((key >> 32) + turn * 0xBB67AE85) & MASK
        x = [c >> 32 ^ x[1] ^ left, c & MASK, a >> 32 ^ x[3] ^ right, a & MASK]
    return joined(x[0], x[1])
