"""Positions: what the distance between a query and a key adds to their score.

Every relative position reduces to a few forms, which are all that kernels take: a bias per head and distance
(`DistanceBias`), and a vector per head and distance that the query (`RelativeVectors`) or the key (`KeyVectors`) is
multiplied with. `Rotary` rotates q and k before the scores. `score_bias` is the definition over every pair, used by the
reference; `rel_bias`, `rel_vectors`, `key_vectors` and `transform` give the form that kernels take.
"""

from .disentangled import Disentangled
from .distance_bias import Alibi, Bias, T5Bias
from .position import DistanceBias, KeyVectors, Position, RelativeVectors
from .relative_vectors import Shaw, TransformerXL
from .rotary import AxialRotary, Rotary

__all__ = [
    "Alibi",
    "AxialRotary",
    "Bias",
    "Disentangled",
    "DistanceBias",
    "KeyVectors",
    "Position",
    "RelativeVectors",
    "Rotary",
    "Shaw",
    "T5Bias",
    "TransformerXL",
]
