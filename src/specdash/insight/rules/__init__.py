"""Alert rules: small pure functions in one module per family, with their texts and limits in the TOML beside it.

A rule is a function `(scene, limits) -> Iterable[Symptom]` with the name of its table in the family's TOML. The
families are listed in `catalogue.FAMILIES`; `book.AlertBook` judges them with hysteresis. Nothing here does I/O.
"""
