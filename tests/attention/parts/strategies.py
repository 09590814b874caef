"""Hypothesis strategies: masks without tensors, and their combinations."""

from __future__ import annotations

from hypothesis import strategies as st

import regard as rg

counts = st.integers(0, 9)
sizes = st.integers(1, 9)

primitives: st.SearchStrategy[rg.Mask] = st.one_of(
    st.builds(rg.Everything),
    st.builds(rg.Causal),
    st.builds(rg.Window, counts, counts),
    st.builds(rg.Dilated, counts, counts, sizes),
    st.builds(rg.Global, counts | st.lists(st.integers(0, 6), max_size=3).map(tuple)),
    st.builds(rg.RandomBlocks, sizes, counts, counts),
    st.builds(rg.NearBlocks, sizes, counts),
    st.builds(rg.Chunked, sizes),
    st.builds(rg.Prefix, counts),
    st.lists(st.just(-1), max_size=4).map(lambda parents: rg.Tree(tuple(parents))),
)
masks: st.SearchStrategy[rg.Mask] = st.recursive(
    primitives,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)
