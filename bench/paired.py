"""Two contenders that took turns: by what factor one is faster, with a 95 % interval.

Each round gives one pair. The logarithms of their quotients are summed up by the Hodges-Lehmann estimate, the
median of the means of all pairs of them, and its interval is that of Wilcoxon's signed-rank test. It is
exact for any distribution that is symmetric, which quotients of alternating measurements are if nothing differs
but the contender; and a round that met a slow moment of the machine counts as one round, not by how slow it was.
A t interval of the same logarithms would be blown up by it.
"""
import functools
import math
import statistics

LEVEL = 0.95
LOSS = 0.95  # what the interval must exclude: five percent slower
LEAST = 6    # rounds: with fewer no interval of this level exists
MANY = 60    # from here on the normal distribution is near enough


def means(values):
    """Of all pairs, each with itself too, in order."""
    return sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])


@functools.lru_cache
def margin(count):
    """How many of the ordered means lie below the interval, and above it; None if there are too few."""
    if count < LEAST:
        return None
    tail = (1 - LEVEL) / 2
    if count >= MANY:
        total = count * (count + 1)
        spread = math.sqrt(total * (2 * count + 1) / 24)
        return math.floor(total / 4 - statistics.NormalDist().inv_cdf(1 - tail) * spread - 0.5)
    # ways[s]: subsets of the ranks 1..count with the sum s; each of the 2^count is as likely as the others.
    ways = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for s in range(len(ways) - 1, rank - 1, -1):
            ways[s] += ways[s - rank]
    below, most = 0, tail * 2 ** count
    for s, number in enumerate(ways):
        below += number
        if below > most:
            break
    return s - 1  # the test's critical value: so many means can be beyond


def ratio(mine, theirs, less_is_better=False):
    """{ratio, interval, pairs}: above 1 is faster, also for times. None stands for a failed measurement.

    The interval is None if there are too few pairs, the whole None if there is not one.
    """
    pairs = [(a, b) for a, b in zip(mine, theirs) if a and b and a > 0 and b > 0]
    if not pairs:
        return None
    sign = -1 if less_is_better else 1
    ordered = means([sign * math.log(a / b) for a, b in pairs])
    beyond = margin(len(pairs))
    interval = None
    if beyond is not None:
        interval = [math.exp(ordered[beyond]), math.exp(ordered[-1 - beyond])]
    return {"ratio": math.exp(statistics.median(ordered)), "interval": interval, "pairs": len(pairs)}


def verdict(found, limit):
    """"above" or "below" if the whole interval is, else "open"; None if nothing is known."""
    if not found or not found["interval"]:
        return None
    low, high = found["interval"]
    return "above" if low > limit else "below" if high < limit else "open"
