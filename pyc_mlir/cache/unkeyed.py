"""Why a compile cannot be named by a key."""


class Unkeyed(Exception):
    """Something takes part in a compile that no content can name; the text says what.

    It never reaches a user: such a compile goes past the cache, and its record has the reason.
    """
