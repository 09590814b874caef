"""The task of tables of numbers and categories, and the baseline beside it."""
