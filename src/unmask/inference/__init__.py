"""Programs that use a model: predict, evaluate, fill masks."""
