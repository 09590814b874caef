"""Graph attention networks: GAT (Veličković et al. 2018) and GATv2 (Brody et al. 2022)."""

from __future__ import annotations

from typing import Any

from ..graph_attention import GATConfig


def gat(*, features: int = 1433, classes: int = 7, dropout: float = 0.6, **more: Any) -> GATConfig:
    """The paper's network for Cora by default: 8 heads of 8, ELU, one head of 7 classes; 92,373 parameters.

    Dropout acts on nodes and on weights. For Pubmed `out_heads=8`; for PPI `layers=3, dim=1024, heads=4, out_heads=6,
    residual=True, dropout=0.0`. `more` are settings of `GATConfig`.

    >>> gat(features=500, classes=3, out_heads=8).dim
    64
    """
    return GATConfig(
        **{"features": features, "classes": classes, "dropout": dropout, "attention_dropout": dropout, **more}
    )


def gatv2(*, features: int = 1433, classes: int = 7, dropout: float = 0.6, **more: Any) -> GATConfig:
    """`gat` with a score that ranks neighbours differently for different nodes; 184,604 parameters for Cora.

    >>> gatv2().version
    2
    """
    return gat(features=features, classes=classes, dropout=dropout, **{"version": 2, **more})
