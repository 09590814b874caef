"""The calls of each page, one file a page: plain functions `call(lab, ask, job) -> dict`, listed in `CALLS`."""
