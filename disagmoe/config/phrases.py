"""Numbers as messages put them."""

from disagmoe.config.catalogue import join_words


def list_numbers(numbers: list[int]) -> str:
    """`1, 2 or 4`."""
    return join_words([str(number) for number in numbers])


def divisors(number: int) -> list[int]:
    """All divisors of `number`, in order."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def span(least: int, most: int) -> str:
    """`1 to 4`, or the one number."""
    return str(least) if least == most else f"{least} to {most}"


def plural(count: int, noun: str) -> str:
    """`1 path`, `2 paths`."""
    several = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else several}"
