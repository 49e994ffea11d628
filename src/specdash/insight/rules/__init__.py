"""Alert rules: small pure functions in one module per family.

A rule is a function `(scene, limits) -> Iterable[Symptom]` with the decorator `catalogue.rule`; its docstring is its
runbook. The families are listed in `catalogue.FAMILIES`; `book.AlertBook` judges them with hysteresis.
"""
