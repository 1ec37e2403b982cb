"""Computes the coefficients of the elementary functions in kernels/cpu/math16.h and prints them with their errors.

    exp   e^r = 1 + r + r^2 p(r) for |r| <= ln 2 / 2, p of degree 4, least relative error of e^r
    erfc  erfc z = e^(-z g(z)) for 0 <= z <= 5, g of degree 12, least relative error of erfc z

Polynomials of least maximum error by Lawson's iteration: weighted least squares on Chebyshev nodes, where each round
multiplies the weights by the errors (Lawson, 1961).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev, polynomial

NODES = 4000
ROUNDS = 200

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


def main() -> None:
    limit = 1.01 * math.log(2) / 2  # a little wider: rounding may pass ln 2 / 2
    _print("exp", *fit(_exp_rest, (-limit, limit), 4, lambda r: r * r))
    _print("erfc", *fit(_erfc_rate, (0.0, 5.0), 12, lambda z: np.maximum(z, 1e-3)))


def fit(
    function: Callable[[Vector], Vector], interval: tuple[float, float], degree: int, scale: Callable[[Vector], Vector]
) -> tuple[Vector, float]:
    """Coefficients, constant first, of the polynomial p that makes the largest scale(x) |p(x) - function(x)| least."""
    low, high = interval
    node = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    x = (low + high) / 2 + (high - low) / 2 * node
    wanted, size, weight = function(x), scale(x), np.full(NODES, 1 / NODES)
    basis = chebyshev.chebvander(node, degree)
    for _ in range(ROUNDS):
        root = np.sqrt(weight) * size
        found = np.linalg.lstsq(basis * root[:, None], wanted * root, rcond=None)[0]
        error = np.abs(basis @ found - wanted) * size
        weight = weight * error / (weight * error).sum()
    return _in_x(chebyshev.cheb2poly(found), low, high), float(error.max())


def _in_x(coefficients: Vector, low: float, high: float) -> Vector:
    """A polynomial in the node -1 .. 1 as one in x."""
    node = np.array([-(low + high) / (high - low), 2 / (high - low)])
    total, power = np.zeros(1), np.ones(1)
    for coefficient in coefficients:
        total, power = polynomial.polyadd(total, coefficient * power), polynomial.polymul(power, node)
    return total


def _exp_rest(r: Vector) -> Vector:
    # Near zero the quotient loses digits; its series does not.
    safe = np.where(np.abs(r) < 1e-4, 1.0, r)
    return np.where(np.abs(r) < 1e-4, 0.5 + r / 6, (np.expm1(safe) - safe) / safe**2)


def _erfc_rate(z: Vector) -> Vector:
    return np.array([-math.log(math.erfc(value)) / value for value in z])


def _print(name: str, coefficients: Vector, error: float) -> None:
    print(f"{name}: largest error {error:.1e}, constant first")
    for coefficient in coefficients:
        print(f"    {np.float32(coefficient):.9g}f")


if __name__ == "__main__":
    main()
