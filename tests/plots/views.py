"""Random views for the tests of figures and pages."""

import torch

import regard as rg

ENGLISH = ["The", "animal", "was", "too", "tired"]
CHINESE = ["那只", "动物", "因为", "十字路口", "疲倦"]
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "$\\frac$", "{{data}}", "a&b\"c'"]


def view_of(queries=5, keys=5, heads=3, batch=2, dtype=torch.float32, **options):
    q, k = torch.randn(batch, heads, queries, 8, dtype=dtype), torch.randn(batch, heads, keys, 8, dtype=dtype)
    return rg.look(2 * q, k, **options)
