"""The vocabulary: readings, facts, series, catalogues, config, paths, errors. No I/O."""
